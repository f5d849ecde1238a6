"""Time as the control plane sees it: the database's clock orders everything; tests put another clock in its place."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

# Returns an aware UTC instant. Production: the database's `clock_timestamp()`; tests: a value they set.
Clock = Callable[[], Awaitable[datetime]]


async def system_clock() -> datetime:
    """The host's clock; only for what never orders or bills anything."""
    return datetime.now(UTC)
