"""`python -m tests.system.chaos --seed N --duration-s S`: one JSON line; exit status 1 when anything is found."""

import argparse
import json
import sys

from tests.system.chaos.running import run


def main() -> int:
    """Runs once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--quiet", action="store_true", help="do not tell the faults on standard error")
    chosen = parser.parse_args()

    def tell(line: str) -> None:
        if not chosen.quiet:
            print(line, file=sys.stderr, flush=True)

    summary = run(chosen.seed, chosen.duration_s, tell)
    print(json.dumps(summary), flush=True)
    return 0 if summary["is_sound"] else 1


if __name__ == "__main__":
    sys.exit(main())
