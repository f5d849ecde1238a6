"""One keep-alive HTTP connection, as cheap as it can be: it shares the cores with what it measures."""

import asyncio
import json
from typing import Any, Self, cast


class Connection(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._expected = -1
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connects to a port of this machine."""
        _, protocol = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return protocol

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request; status and body of the whole answer.

        Raises:
            ConnectionError: the server closed the connection.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the server closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._expected < 0:
            head, end, _ = bytes(self._received).partition(b"\r\n\r\n")
            if not end:
                return
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            self._expected = len(head) + len(end) + length
        if len(self._received) < self._expected or self._answer is None or self._answer.done():
            return
        whole = bytes(self._received)
        self._received.clear()
        self._expected = -1
        self._answer.set_result((int(whole[9:12]), whole.partition(b"\r\n\r\n")[2]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server closed the connection"))


def request(method: str, path: str, key: str, body: bytes = b"", idempotency_key: str = "") -> bytes:
    """The bytes of a request with a bearer key and a JSON body."""
    once = f"Idempotency-Key: {idempotency_key}\r\n" if idempotency_key else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n{once}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
