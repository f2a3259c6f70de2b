"""Write today's contracts as the released ones: ``python -m topics.contract_release [--breaking]``.

Exit code 1, and nothing written, where readers of the contracts released before would break; ``--breaking`` is for a
version that says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from topics.contract_compatibility import topic_changes
from topics.contract_released import current_contracts, released_contracts, write_contracts


def main(arguments: Sequence[str]) -> int:
    if set(arguments) - {"--breaking"}:
        print("usage: python -m topics.contract_release [--breaking]", file=sys.stderr)
        return 2
    current = current_contracts()
    changes = topic_changes(released_contracts(), current)
    for change in changes:
        print(f"{'breaks readers: ' if change.breaks else ''}{change}")
    if any(change.breaks for change in changes) and not arguments:
        print("nothing was written", file=sys.stderr)
        return 1
    write_contracts(current)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
