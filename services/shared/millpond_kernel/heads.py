"""An end to the head of a request: its line and headers are held in memory before any application sees them.

The server's parser sets no limit of its own.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from millpond_contracts.errors import ErrorCode
from millpond_kernel.problem import make_problem

MAX_HEAD_BYTES = 65_536


class BoundedHead(HttpToolsProtocol):
    """The server's protocol, which answers 431 and closes once a head has grown beyond the limit.

    Bytes count as they come; what comes in one piece with the end of a head (at most the socket's read size) may pass.
    """

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._head_bytes: int | None = 0

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def _refuse(self) -> None:
        detail = f"The request line and the headers may have {MAX_HEAD_BYTES} bytes together."
        body = make_problem(ErrorCode.HEAD_TOO_LARGE, detail).model_dump_json().encode()
        head = (
            "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
