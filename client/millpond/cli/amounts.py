"""Amounts as people write and read them: `2`, `500m`, `4GiB`, `90m`; the API keeps its integers.

Cores and devices are counted in thousandths (milli), memory in MiB, time in seconds.
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import typer

_NUMBER = re.compile(r"^(\d{1,12})(?:\.(\d{1,6}))?(m?)$", re.ASCII)
_MEMORY = re.compile(r"^(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]+)$", re.ASCII)
_PART = re.compile(r"(\d{1,12})([smhd])", re.ASCII)
_AGO = re.compile(r"^(\d{1,8}[smhdSMHD])+$", re.ASCII)
_MIB = {"m": 1, "mi": 1, "mib": 1, "g": 1024, "gi": 1024, "gib": 1024, "t": 1 << 20, "ti": 1 << 20, "tib": 1 << 20}
_DECIMAL_UNITS = {"kb", "mb", "gb", "tb", "k", "kib", "b"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# A hundred years: from now, there and back, every calendar goes so far.
_MAX_SECONDS = 36_500 * 86_400


def parse_milli(text: str, hint: str) -> int:
    """Thousandths of a core or a device: `2` = 2000, `0.5` = 500, `500m` = 500.

    Raises:
        typer.BadParameter: it is none, or finer than a thousandth.
    """
    match = _NUMBER.match(text.strip())
    if match is None or (match[3] and match[2]):
        raise _bad(text, hint, "a number such as 2, 0.5 or 500m (thousandths)")
    amount = Decimal(f"{match[1]}.{match[2] or 0}") * (1 if match[3] else 1000)
    if amount != int(amount):
        raise _bad(text, hint, "nothing finer than a thousandth (0.001)")
    return int(amount)


def parse_mib(text: str, hint: str) -> int:
    """MiB: `4GiB` = 4096, `512MiB` = 512; a single letter means the same (`4G`).

    Raises:
        typer.BadParameter: no unit, a decimal unit, or a part of a MiB.
    """
    match = _MEMORY.match(text.strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in _MIB:
        reason = " (powers of 1024, not of 1000)" if unit in _DECIMAL_UNITS else ""
        raise _bad(text, hint, f"an amount with its unit, such as 512MiB or 4GiB{reason}")
    amount = Decimal(match[1]) * _MIB[unit]
    if amount != int(amount):
        raise _bad(text, hint, "a whole number of MiB")
    return int(amount)


def parse_seconds(text: str, hint: str) -> int:
    """Seconds: `90`, `90s`, `15m`, `1h30m`, `2d`.

    Raises:
        typer.BadParameter: it is no duration, or one of more than a hundred years.
    """
    cleaned = text.strip().lower()
    spelled = f"{cleaned}s" if cleaned.isdigit() else cleaned
    parts = _PART.findall(spelled)
    if not parts or "".join(number + unit for number, unit in parts) != spelled:
        raise _bad(text, hint, "a duration such as 90s, 15m, 1h30m or 2d")
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > _MAX_SECONDS:
        raise _bad(text, hint, "at most a hundred years (36500d)")
    return seconds


def parse_instant(text: str, hint: str, now: datetime | None = None) -> datetime:
    """An instant: `2h` = so long ago, or written out as `parse_time` reads it.

    Raises:
        typer.BadParameter: it is none.
    """
    cleaned = text.strip()
    if _AGO.match(cleaned):
        return (now or datetime.now(UTC)) - timedelta(seconds=parse_seconds(cleaned, hint))
    return parse_time(text, hint, "2h (ago), 2026-11-30 or 2026-11-30T12:00Z")


def parse_time(text: str, hint: str, examples: str = "2031-05-01 or 2031-05-01T08:00Z") -> datetime:
    """An instant written out: `2026-11-30` or `2026-11-30T12:00` in this machine's zone, or with a zone.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError) as error:
        raise _bad(text, hint, f"a time such as {examples}") from error


def parse_pairs(texts: list[str], hint: str) -> dict[str, str]:
    """`KEY=VALUE` options as a mapping.

    Raises:
        typer.BadParameter: one has no `=`.
    """
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise _bad(text, hint, "KEY=VALUE")
        pairs[key] = value
    return pairs


def parse_month(text: str, hint: str) -> tuple[int, int]:
    """Year and month of `2026-11`.

    Raises:
        typer.BadParameter: it is no month.
    """
    try:
        month = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError as error:
        raise _bad(text, hint, "a month such as 2026-11") from error
    return month.year, month.month


def show_milli(milli: int) -> str:
    """Cores or devices: `2`, `0.25`."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


def show_mib(mib: int) -> str:
    """Memory in the largest unit that keeps it readable: `512 MiB`, `15.5 GiB`."""
    if mib < 1024:
        return f"{mib} MiB"
    unit, size = ("GiB", 1024) if mib < 1024 * 1024 else ("TiB", 1024 * 1024)
    return f"{mib / size:.1f}".removesuffix(".0") + f" {unit}"


def show_amount(resource: str, amount: int) -> str:
    """An amount of a resource in the words of people; `resource` is `cpu`, `memory` or `device`."""
    if resource.startswith("memory"):
        return show_mib(amount)
    cores = resource.startswith("cpu")
    shown = show_milli(amount)
    noun = "core" if cores else "device"
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def show_count(count: int, noun: str) -> str:
    """A number of things: `1 device`, `2 devices`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show_share(permille: int) -> str:
    """Thousandths as people read them: `3.5 %`."""
    return f"{permille / 10:g} %"


def show_seconds(seconds: float) -> str:
    """A duration in its two largest units: `48s`, `3m 20s`, `2h 5m`, `4d 1h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return _two(whole // 60, "m", whole % 60, "s")
    if whole < 86_400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "m")
    return _two(whole // 86_400, "d", whole % 86_400 // 3600, "h")


def show_age(since: datetime | None, now: datetime | None = None) -> str:
    """How long ago something was."""
    return "-" if since is None else show_seconds(((now or datetime.now(UTC)) - since).total_seconds())


def show_time(at: datetime | None) -> str:
    """An instant in this machine's zone, to the second."""
    return "-" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" + (f" {small}{small_unit}" if small else "")


def _bad(text: str, hint: str, expected: str) -> typer.BadParameter:
    return typer.BadParameter(f"expected {expected}, found {text[:60]!r}", param_hint=hint)
