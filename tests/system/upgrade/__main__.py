"""`python -m tests.system.upgrade [--from COMMIT]`: one JSON line; exit status 1 when anything is found."""

import argparse
import json
import sys

from tests.earlier import COMMIT
from tests.system.upgrade.running import run


def main() -> int:
    """Runs once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="commit", default=COMMIT, help="the earlier version; tests.earlier names one")
    parser.add_argument("--phase-s", type=float, default=8.0, help="how long each phase is under load")
    chosen = parser.parse_args()
    summary = run(chosen.commit or COMMIT, chosen.phase_s, lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(summary), flush=True)
    return 1 if summary["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
