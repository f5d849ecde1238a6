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
def _history() -> dict[str, str | None]:
    """revision -> the one that it builds on."""
    texts = [path.read_text(encoding="utf-8") for path in (migrations_folder() / "versions").glob("*.py")]
    found = ((_REVISION.search(text), _DOWN.search(text)) for text in texts)
    return {revision[1]: None if down is None else down[1] for revision, down in found if revision is not None}


@cache
def code_head() -> str:
    """The one revision that no other revision builds on."""
    history = _history()
    heads = history.keys() - set(history.values())
    if len(heads) != 1:
        raise RuntimeError(f"expected one head of the migrations, found {sorted(heads)}")
    return next(iter(heads))


def may_serve(revision: str | None) -> bool:
    """Whether this code can work with a database at `revision`: at its head, or ahead of it.

    A revision that this code does not have was made by a later version. Revisions only add, so that the processes of
    this version go on, start again, and may be put back in the place of later ones.
    """
    return revision == code_head() or (revision is not None and revision not in _history())


def list_pending(revision: str | None) -> list[str]:
    """The revisions that bring a database from `revision` (None = an empty one) to this code's head, oldest first."""
    if may_serve(revision):
        return []
    pending: list[str] = []
    at: str | None = code_head()
    while at is not None and at != revision:
        pending.append(at)
        at = _history()[at]
    return pending[::-1]
