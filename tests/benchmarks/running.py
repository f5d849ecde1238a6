"""A compact stack for one benchmark."""

from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from tests.system.stack import Stack


def on_stack(measure: Callable[[Stack], Coroutine[Any, Any, None]]) -> None:
    """Starts a stack, measures on it, and stops it whatever happens."""
    stack = Stack.make(split=False)
    try:
        stack.start()
        uvloop.run(measure(stack))
    finally:
        stack.close()
