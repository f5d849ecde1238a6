"""Millpond for Python: `Client` and the errors it raises. Imports no server code."""

from millpond.client.client import Client
from millpond.client.errors import MillpondError
from millpond.profiles import NoProfile

__all__ = ["Client", "MillpondError", "NoProfile"]
