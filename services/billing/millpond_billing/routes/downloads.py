"""A file as an answer: whole, or from where a broken download stopped (RFC 9110, ranges and If-Range).

One range is served; several, and what is no range of bytes, are answered with the whole file, as the RFC allows.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request
from starlette.responses import StreamingResponse

from millpond_contracts.errors import ErrorCode
from millpond_kernel.problem import ProblemError

BLOCK = 256 * 1024
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Download:
    """A file of `size` bytes; `digest` is its SHA-256, hexadecimal, and its entity tag."""

    file: Path
    size: int
    digest: str
    media_type: str

    @property
    def headers(self) -> Mapping[str, str]:
        """What every answer about the file says."""
        return {
            "ETag": f'"{self.digest}"',
            # RFC 9530: of the whole file, whatever part is sent.
            "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(self.digest)).decode()}:",
            "Accept-Ranges": "bytes",
            "Content-Disposition": f'attachment; filename="{self.file.name}"',
        }


def answer(request: Request, download: Download) -> StreamingResponse:
    """The part of the file that the request asks for.

    Raises:
        ProblemError: 416 `billing.export.range`.
    """
    wanted = request.headers.get("range")
    if_range = request.headers.get("if-range")
    if if_range is not None and if_range != f'"{download.digest}"':
        wanted = None
    part = None if wanted is None else find_range(wanted, download.size)
    start, end = part or (0, download.size)
    headers = {**download.headers, "Content-Length": str(end - start)}
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{download.size}"
    status = 200 if part is None else 206
    return StreamingResponse(_read(download.file, start, end), status, headers, download.media_type)


def find_range(text: str, size: int) -> tuple[int, int] | None:
    """The bytes `[start, end)` that a Range header asks for; None when it is to be ignored.

    Raises:
        ProblemError: 416: there are no such bytes.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), size if not last else min(size, int(last) + 1)
    if first and last and int(last) < int(first):
        return None
    if start >= end:
        raise ProblemError(
            ErrorCode.EXPORT_RANGE,
            f"The file has {size} bytes; nothing of it is in {text.strip()[:60]!r}.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, end


async def _read(file: Path, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes of a file, a block in memory at a time."""
    with await asyncio.to_thread(file.open, "rb") as source:
        source.seek(start)
        while start < end:
            block = await asyncio.to_thread(source.read, min(BLOCK, end - start))
            if not block:
                # The answer ends early, which the caller sees by its length.
                return
            start += len(block)
            yield block
