"""Millpond for Python: `Client`, `AsyncClient`, and the errors they raise. Imports no server code.

The names are loaded when they are first asked for, so that the command line can begin before its libraries do.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.client.asynchronous.client import AsyncClient
    from millpond.client.client import Client
    from millpond.client.errors import MillpondError
    from millpond.profiles import NoProfile

__all__ = ["AsyncClient", "Client", "MillpondError", "NoProfile"]

_MODULES = {
    "AsyncClient": "millpond.client.asynchronous.client",
    "Client": "millpond.client.client",
    "MillpondError": "millpond.client.errors",
    "NoProfile": "millpond.profiles",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
