"""Reading a file of the API: a broken connection is resumed where it broke, and the whole is checked by its digest."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx

from millpond.client.errors import MillpondError, error_of
from millpond.client.sending import Sender, unreachable
from millpond_contracts.bodies.bills import ExportView
from millpond_contracts.ids import ExportId

_AGAIN = (429, 502, 503, 504)
_BLOCK = 1 << 20


def stream_file(sender: Sender, path: str, digest: str, *, after: int = 0) -> Iterator[bytes]:
    """The bytes of a file from `after` on; a broken connection is resumed where it broke.

    Args:
        digest: SHA-256 of the whole file, hexadecimal, which is its entity tag: no other file is ever joined on.

    Raises:
        MillpondError: refused, or the file is another one.
        Unreachable: the connection broke again and again without a byte between.
    """
    failures = 0
    while True:
        try:
            with sender.http.stream("GET", path, headers=_headers(digest, after)) as response:
                if response.status_code not in _AGAIN or failures >= sender.policy.attempts:
                    total = _check(response, digest, after)
                    for block in response.iter_bytes():
                        after, failures = after + len(block), 0
                        yield block
                    if after >= total:
                        return
            failures += 1
        except httpx.TransportError as error:
            failures += 1
            if failures > sender.policy.attempts:
                raise unreachable(sender.http.base_url, error) from error
        sender.sleep(sender.policy.delay_seconds(max(failures, 1)))


def _headers(digest: str, after: int) -> dict[str, str]:
    plain = {"Accept-Encoding": "identity"}
    return plain if not after else {**plain, "Range": f"bytes={after}-", "If-Range": f'"{digest}"'}


def _check(response: httpx.Response, digest: str, after: int) -> int:
    """How many bytes the file has; the answer must be the wanted part of the wanted file."""
    if response.status_code >= 400:
        response.read()
        raise error_of(response)
    is_part = response.status_code == 206
    if response.headers.get("etag") != f'"{digest}"' or is_part != bool(after):
        raise MillpondError(
            "the file is not the one whose download was begun; delete what there is of it and begin anew",
            code="client.download.changed",
            status=response.status_code,
        )
    if is_part:
        return int(response.headers["content-range"].rpartition("/")[2])
    return int(response.headers["content-length"])


def read_checked(sender: Sender, path: str, digest: str) -> Iterator[bytes]:
    """The bytes of a file; after the last one it raises when they are not what the digest says.

    Raises:
        MillpondError: `client.download.digest`, or refused.
    """
    found = hashlib.sha256()
    for block in stream_file(sender, path, digest):
        found.update(block)
        yield block
    _compare(found.hexdigest(), digest)


def part_of(to: Path, export_id: ExportId) -> Path:
    """Where an export lies that is not wholly downloaded to `to` yet."""
    return to.with_name(f"{to.name}.{export_id}.part")


def save_checked(sender: Sender, path: str, export: ExportView, digest: str, to: Path) -> None:
    """Writes a ready export to `to`, going on with what an earlier download left of it.

    Under its name the file is whole and as its digest says.

    Raises:
        MillpondError: `client.download.digest`, or refused.
        OSError: the file cannot be written.
    """
    part = part_of(to, export.export_id)
    found = hashlib.sha256()
    size = _digest_of(part, found) if part.exists() else 0
    if size > (export.bytes or 0):
        part.unlink()
        found, size = hashlib.sha256(), 0
    with part.open("ab") as out:
        if size < (export.bytes or 0):
            for block in stream_file(sender, path, digest, after=size):
                found.update(block)
                out.write(block)
        out.flush()
        os.fsync(out.fileno())
    try:
        _compare(found.hexdigest(), digest)
    except MillpondError:
        # Going on with it would never help.
        part.unlink()
        raise
    part.replace(to)


def _digest_of(file: Path, found: "hashlib._Hash") -> int:
    """Adds what a file holds; its size."""
    size = 0
    with file.open("rb") as source:
        while block := source.read(_BLOCK):
            found.update(block)
            size += len(block)
    return size


def _compare(found: str, digest: str) -> None:
    if found != digest:
        raise MillpondError(
            f"what was downloaded has the SHA-256 {found}, not {digest}; download it again",
            code="client.download.digest",
        )
