"""Small files of /proc and /sys: read whole, absent or forbidden ones are None.

Every reader of this package takes a `root` folder, `/` on a machine and a made tree in a test.
"""

from collections.abc import Iterator
from pathlib import Path


def read_text(path: Path) -> str | None:
    """The content without surrounding blanks, or None when the file cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The file's content as a whole number (decimal, or hexadecimal with `0x`), or None."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text, 0)
    except ValueError:
        return None


def list_folder(path: Path) -> list[Path]:
    """The entries of a folder in natural order, none when it cannot be read."""
    try:
        return sorted(path.iterdir(), key=lambda entry: (len(entry.name), entry.name))
    except OSError:
        return []


def count_in_list(text: str | None) -> int | None:
    """The number of members of a kernel list such as `0-3,8`; None when it cannot be read."""
    if not text:
        return None
    try:
        return sum(last - first + 1 for first, last in _ranges(text))
    except ValueError:
        return None


def read_table(path: Path) -> dict[str, int]:
    """The first number of every `Name: number …` line, such as /proc/meminfo's, by name."""
    table: dict[str, int] = {}
    for line in (read_text(path) or "").splitlines():
        name, colon, rest = line.partition(":")
        first = rest.split()[:1]
        if colon and first and first[0].isdigit():
            table[name.strip()] = int(first[0])
    return table


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)
