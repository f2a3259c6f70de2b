"""``python -m connectors CONFIG.toml``: one connector in the foreground, for any tables, until SIGTERM or SIGINT.

Exit codes: 0 stopped as asked, 1 the start was refused, 2 wrong usage. Log lines go to stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import structlog

from connectors.config_file import read_config
from connectors.connector import Connector
from connectors.errors import ConfigurationError
from connectors.status import ConnectorStatus
from connectors.stop import StopSignal
from connectors.watch import Watch


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m connectors", description=__doc__)
    parser.add_argument("config", type=Path, help="a TOML file, see connectors/examples")
    parser.add_argument("--check", action="store_true", help="only read the file and say what is wrong with it")
    given = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        config = read_config(given.config, os.environ)
        if given.check:
            return 0
        stop, status = StopSignal(), ConnectorStatus()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        with Watch(config, status, stop):
            try:
                Connector(config, stop, status).run()
            finally:
                stop.set()
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
