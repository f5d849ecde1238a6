"""Calls that may never return, bounded from the outside.

A call into a vendor's library that hangs cannot be interrupted; its thread is left behind and the process that holds it
ends with `os._exit`. Only the probe uses this: it lives for one answer.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class CallStuckError(Exception):
    """A call did not return within its time; `thread` is where it still hangs."""

    def __init__(self, message: str, thread: threading.Thread) -> None:
        super().__init__(message)
        self.thread = thread


class _Slot(Generic[T]):
    value: T
    error: BaseException | None = None


class TimeBudget:
    """The time left until a fixed instant, shared by all calls of one probe."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left_seconds(self) -> float:
        """Seconds until the end, zero after it."""
        return max(0.0, self._end - time.monotonic())


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """The function's result, from a thread that is abandoned when it takes longer than `seconds`.

    Raises:
        CallStuckError: the call did not return in time; its thread lives on.
    """
    slot: _Slot[T] = _Slot()

    def run() -> None:
        try:
            slot.value = function()
        except BaseException as error:
            slot.error = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise CallStuckError(f"no answer within {seconds:.1f} s", thread)
    if slot.error is not None:
        raise slot.error
    return slot.value
