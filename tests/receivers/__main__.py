"""The hostile receiver as a program: ``python -m tests.receivers`` prints its URLs and its CA, and runs until stdin ends.

In a process of its own, what it needs of memory and sockets is not counted as the sender's.
"""

from __future__ import annotations

import json
import sys

from tests.receivers.catalogue import BEHAVIOURS
from tests.receivers.hostile import WELL_BEHAVED, HostileReceiver


def main() -> None:
    with HostileReceiver() as receiver:
        urls = {name: receiver.url(name) for name in (WELL_BEHAVED, *BEHAVIOURS)}
        print(json.dumps({"urls": urls, "ca": receiver.authority.pem}), flush=True)
        sys.stdin.read()


main()
