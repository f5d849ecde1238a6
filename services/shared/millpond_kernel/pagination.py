"""Lists in pages: ordered by time-ordered id, continued by an opaque signed cursor."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Depends, Query

from millpond_contracts.bodies.shapes import Page
from millpond_contracts.errors import ErrorCode
from millpond_kernel.problem import ProblemError

MAX_LIMIT = 200
MAX_POSITION = 2**62
# A cursor may hold a key of eight labels, each of 128 characters that are written as six bytes.
MAX_CURSOR = 10_000
_TAG_BYTES = 6
# The tag keeps people from inventing cursors; it protects nothing, since row-level security bounds every read.
_TAG_KEY = b"millpond cursor v1"

Row = TypeVar("Row")
Item = TypeVar("Item")


def _tag(body: bytes) -> bytes:
    return hmac.new(_TAG_KEY, body, hashlib.sha256).digest()[:_TAG_BYTES]


def encode_cursor(last: UUID | int | str) -> str:
    """The cursor that continues after `last`."""
    body = f"u{last.hex}" if isinstance(last, UUID) else f"i{last}" if isinstance(last, int) else f"s{last}"
    raw = body.encode()
    return base64.urlsafe_b64encode(_tag(raw) + raw).rstrip(b"=").decode()


def decode_cursor(text: str) -> UUID | int | str:
    """What a cursor continues after.

    Raises:
        ProblemError: 400 `kernel.cursor.invalid`.
    """
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        tag, body = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(body)):
            raise ValueError("tag")
        kind, value = body[:1].decode(), body[1:].decode()
        return UUID(hex=value) if kind == "u" else int(value) if kind == "i" else value
    except ValueError as error:
        raise ProblemError(
            ErrorCode.CURSOR_INVALID, "Pass next_cursor of the previous page unchanged, or leave cursor out."
        ) from error


def snapshot_position(after: str) -> UUID | None:
    """Where the last page of a snapshot ended; None at the beginning.

    Raises:
        ProblemError: 400 `kernel.cursor.invalid`.
    """
    try:
        return UUID(after) if after else None
    except ValueError as error:
        raise ProblemError(ErrorCode.CURSOR_INVALID, "Pass `next` of the previous page as `after`.") from error


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page is wanted: at most `limit` items after `after` (None = from the beginning)."""

    limit: int
    after: UUID | int | str | None

    def after_uuid(self) -> UUID | None:
        """The position in a list ordered by UUID.

        Raises:
            ProblemError: 400 for a cursor of another list.
        """
        if self.after is None or isinstance(self.after, UUID):
            return self.after
        raise ProblemError(ErrorCode.CURSOR_INVALID, "The cursor belongs to another list.")

    def after_int(self) -> int | None:
        """The position in a list ordered by number, which starts at zero; raises like `after_uuid`."""
        if self.after is None or (isinstance(self.after, int) and 0 <= self.after <= MAX_POSITION):
            return self.after
        raise ProblemError(ErrorCode.CURSOR_INVALID, "The cursor belongs to another list.")

    def after_text(self) -> str | None:
        """The position in a list ordered by text; raises like `after_uuid`."""
        if self.after is None or isinstance(self.after, str):
            return self.after
        raise ProblemError(ErrorCode.CURSOR_INVALID, "The cursor belongs to another list.")


async def page_request(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="items per page")] = 50,
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR, description="next_cursor of the previous page")] = None,
) -> PageRequest:
    """FastAPI dependency: `limit` and `cursor`."""
    return PageRequest(limit, None if cursor is None else decode_cursor(cursor))


Paging = Annotated[PageRequest, Depends(page_request)]


def make_page(
    rows: Sequence[Row], paging: PageRequest, item: Callable[[Row], Item], key: Callable[[Row], UUID | int | str]
) -> Page[Item]:
    """A page from up to `limit + 1` rows: the surplus row only tells that there is more."""
    shown = rows[: paging.limit]
    more = len(rows) > paging.limit
    return Page[Item](items=[item(row) for row in shown], next_cursor=encode_cursor(key(shown[-1])) if more else None)
