"""Named places at which a test may have a process killed, between two things that must not depend on one another.

Nothing happens unless MILLPOND_FAIL_POINTS names a folder when the process starts; then a process that comes by `point`
kills itself (SIGKILL) if that folder holds a file `<its process id>.<point>`.
"""

import os
import signal
from enum import StrEnum
from typing import Final


class FailPoint(StrEnum):
    """Where a process can be told to end."""

    BEFORE_COMMIT = "before_commit"
    """Rows, events and audit are written, COMMIT is not sent: nothing of it may be there afterwards."""
    AFTER_COMMIT = "after_commit"
    """Committed; no relay is woken, no client answered."""
    BEFORE_PUBLISH = "before_publish"
    """Events have their numbers, Redis does not have them."""
    AFTER_PUBLISH = "after_publish"
    """Redis has a batch of events, the relay does not know."""
    INSIDE_APPLY = "inside_apply"
    """A consumer's effects and its cursor are written, not committed."""
    AFTER_APPLY = "after_apply"
    """They are committed; nobody has been told the position."""


_FOLDER: Final = os.environ.get("MILLPOND_FAIL_POINTS")


def pass_point(point: FailPoint) -> None:
    """Does nothing, or never returns."""
    if _FOLDER is not None and os.path.exists(f"{_FOLDER}/{os.getpid()}.{point}"):
        os.kill(os.getpid(), signal.SIGKILL)
