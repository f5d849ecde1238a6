"""Where the migrations lie and which revision this code expects, without importing Alembic."""

import re
from functools import cache
from pathlib import Path

_REVISION = re.compile(r'^revision(?::\s*str)?\s*=\s*"([^"]+)"', re.MULTILINE)
_DOWN = re.compile(r'^down_revision(?::[^=]+)?\s*=\s*"([^"]+)"', re.MULTILINE)


def migrations_folder() -> Path:
    """The folder with `env.py` and `versions/`: inside the installed package, or in the source tree.

    Raises:
        FileNotFoundError: neither exists.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "_migrations", here.parents[2] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise FileNotFoundError("the migrations are missing from this installation")


@cache
def code_head() -> str:
    """The one revision that no other revision builds on."""
    revisions: set[str] = set()
    parents: set[str] = set()
    for path in (migrations_folder() / "versions").glob("*.py"):
        text = path.read_text()
        revisions.update(_REVISION.findall(text))
        parents.update(_DOWN.findall(text))
    heads = revisions - parents
    if len(heads) != 1:
        raise RuntimeError(f"expected one head of the migrations, found {sorted(heads)}")
    return heads.pop()
