"""A POST that creates has one effect per Idempotency-Key, stored in the transaction of the effect itself.

The row `(tenant, key)` is inserted first; a second caller waits shortly on it, then gets 409. Another body with the
same key is 422. A replay returns the stored answer with `Idempotency-Replayed: true`. Errors store nothing, so they can
be retried.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol, TypeVar
from uuid import UUID

import asyncpg
from fastapi import Depends, Header, Request
from fastapi.responses import Response

from millpond_contracts.errors import ErrorCode
from millpond_kernel.db import Database
from millpond_kernel.generation import etag
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork

NOBODY = UUID(int=0)


class Writable(Protocol):
    """A model, or what has written one already."""

    def model_dump_json(self) -> str:
        """The JSON text of the answer."""


Answer = TypeVar("Answer", bound=Writable)

# How long a second caller waits for the first with the same key, and how long any later statement for a lock.
KEY_WAIT_SECONDS = 2
_CLAIM = (
    "INSERT INTO idempotency (tenant_id, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    " RETURNING set_config('lock_timeout', '10s', true)"
)
_STORED = "SELECT fingerprint, status, body, headers FROM idempotency WHERE tenant_id = $1 AND key = $2"
_STORE = "UPDATE idempotency SET status = $3, body = $4, headers = $5 WHERE tenant_id = $1 AND key = $2"


async def idempotency_key(
    value: str | None = Header(None, alias="Idempotency-Key", description="1 to 128 visible ASCII characters"),
) -> str:
    """FastAPI dependency: the Idempotency-Key header.

    Raises:
        ProblemError: 400 when missing or malformed.
    """
    if value is None:
        raise ProblemError(ErrorCode.IDEMPOTENCY_KEY_MISSING, "Send an Idempotency-Key, for example a random UUID.")
    if not 1 <= len(value) <= 128 or not all(33 <= ord(character) <= 126 for character in value):
        raise ProblemError(ErrorCode.IDEMPOTENCY_KEY_INVALID, "Expected 1 to 128 visible ASCII characters.")
    return value


IdempotencyKey = Annotated[str, Depends(idempotency_key)]


async def run_idempotent(
    request: Request,
    database: Database,
    principal: Principal,
    key: str,
    work: Callable[[UnitOfWork], Awaitable[Answer]],
    *,
    status: int = 201,
    location: Callable[[Answer], str] | None = None,
    redact: Callable[[Answer], Answer] | None = None,
) -> Response:
    """Runs `work` in one unit of work with the key's row, or returns what it answered the first time.

    Args:
        work: the use case; its answer is stored and sent.
        location: gives the `Location` header of the answer.
        redact: what to store instead of the answer when it holds a secret, which is then shown once only.

    Raises:
        ProblemError: 409 while the first request runs, 422 for another body with the same key.
    """
    fingerprint = hashlib.sha256(
        f"{request.method} {request.url.path}?{request.url.query}\n".encode() + await request.body()
    ).digest()
    owner = principal.tenant_id or NOBODY
    # Two callers of one tenant share its keys; operators share theirs, told apart by who they are.
    full_key = key if principal.tenant_id else f"{principal.subject}:{key}"
    async with database.begin(principal.scope, lock_timeout_seconds=KEY_WAIT_SECONDS) as unit:
        try:
            claimed = await unit.fetchval(_CLAIM, owner, full_key, fingerprint)
        except asyncpg.LockNotAvailableError as error:
            raise ProblemError(
                ErrorCode.IDEMPOTENCY_KEY_IN_FLIGHT,
                "The first request with this key has not ended.",
                retry_after_seconds=1,
            ) from error
        if not claimed:
            return await _replay(unit, owner, full_key, fingerprint)
        answer = await work(unit)
        body = answer.model_dump_json()
        headers = _headers(answer, location)
        stored = body if redact is None else redact(answer).model_dump_json()
        await unit.execute(_STORE, owner, full_key, status, stored, headers)
    return Response(body, status, headers, media_type="application/json")


async def _replay(unit: UnitOfWork, owner: UUID, key: str, fingerprint: bytes) -> Response:
    row = await unit.fetchrow(_STORED, owner, key)
    if row is None or row["status"] is None:
        raise ProblemError(
            ErrorCode.IDEMPOTENCY_KEY_IN_FLIGHT, "The first request with this key has not ended.", retry_after_seconds=1
        )
    if bytes(row["fingerprint"]) != fingerprint:
        raise ProblemError(
            ErrorCode.IDEMPOTENCY_KEY_REUSED, "This key was used with another request; use a new key for a new request."
        )
    headers = {**(row["headers"] or {}), "Idempotency-Replayed": "true"}
    return Response(row["body"], row["status"], headers, media_type="application/json")


def _headers(answer: Answer, location: Callable[[Answer], str] | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    generation = getattr(answer, "generation", None)
    if isinstance(generation, int):
        headers["ETag"] = etag(generation)
    if location is not None:
        headers["Location"] = location(answer)
    return headers
