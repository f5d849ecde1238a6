"""Chooses free TCP ports on the loopback address."""

import random
import socket

from millpond.stack.errors import StackError

LOOPBACK = "127.0.0.1"

# Below the range from which Linux gives ports to outgoing connections (32768 up), so that no client socket takes
# the port of an engine while it is being restarted.
_CHOICES = range(15_000, 30_000)
_TRIES = 200


def find_free_port(preferred: int | None = None) -> int:
    """Returns a port of 127.0.0.1 that nothing is bound to at this moment; `preferred` if that one is free."""
    if preferred is not None and is_free(preferred):
        return preferred
    for _ in range(_TRIES):
        port = random.SystemRandom().choice(_CHOICES)
        if is_free(port):
            return port
    raise StackError(f"no free port found on {LOOPBACK} between {_CHOICES.start} and {_CHOICES.stop - 1}")


def is_free(port: int) -> bool:
    """Says whether a server could bind `port` on 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
