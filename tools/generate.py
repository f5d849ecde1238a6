"""`python -m tools.generate`: writes every file of the tree that is made from code.

`--check` writes nothing and fails with the names of the files that are out of date. Nothing is connected to.
"""

import argparse
import sys

from tools import build_client, build_docs, build_openapi, build_proxy


def main() -> int:
    """Writes or checks the files; the exit status is 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(prog="tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is out of date")
    check = parser.parse_args().check
    stale = []
    for files in (build_openapi.files(), build_docs.files(), build_proxy.files(), build_client.files()):
        for path, text in files:
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            stale.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make openapi` and commit the result\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
