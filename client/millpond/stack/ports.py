"""Chooses free TCP ports on the loopback address, and keeps them free for whom they were chosen."""

import random
import socket
from types import TracebackType
from typing import Self

from millpond.stack.errors import StackError

LOOPBACK = "127.0.0.1"

# Below the range from which Linux gives ports to outgoing connections (32768 up), so that no client socket takes
# the port of an engine while it is being restarted.
_CHOICES = range(15_000, 30_000)
_TRIES = 200


class HeldPorts:
    """Free ports of 127.0.0.1 that no other stack is given while they are held.

    A port is found seconds before its server listens. So it is bound here meanwhile, without listening: whoever looks
    for a free port passes it by, and a server that sets SO_REUSEADDR, as every one of a stack does, can still bind it
    and listen, also after a restart.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def take(self) -> int:
        """A port that nothing is bound to, held from now on.

        Raises:
            StackError: none was found.
        """
        for _ in range(_TRIES):
            port = random.SystemRandom().choice(_CHOICES)
            held = _bind(port)
            if held is not None:
                self._sockets.append(held)
                return port
        raise StackError(f"no free port found on {LOOPBACK} between {_CHOICES.start} and {_CHOICES.stop - 1}")

    def release(self) -> None:
        """Lets go of all of them; servers that listen go on."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def find_free_port(preferred: int | None = None) -> int:
    """Returns a port of 127.0.0.1 that nothing is bound to at this moment; `preferred` if that one is free."""
    if preferred is not None and is_free(preferred):
        return preferred
    with HeldPorts() as ports:
        return ports.take()


def is_free(port: int) -> bool:
    """Says whether a server could bind `port` on 127.0.0.1 now and listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _bind(port: int) -> socket.socket | None:
    """A socket on `port` beside which a server may bind, or None when any other socket is bound there."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # First without SO_REUSEADDR: with it, a port that another stack holds would look free.
        held.bind((LOOPBACK, port))
    except OSError:
        held.close()
        return None
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held
