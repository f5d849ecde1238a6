"""Routes that every service has: the event feed, snapshots, the resumable watch, the audit trail, health, metrics."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import generate_latest

from millpond_contracts.bodies.audit import AuditView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.auth import AdminCaller, ReaderCaller, ServiceCaller
from millpond_kernel.db import AWAY_ERRORS, SYSTEM
from millpond_kernel.filters import Spanning, Where
from millpond_kernel.outbox import envelope_json
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.pausing import sleep_or_stop
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.tokens import public_jwk
from millpond_kernel.uow import UnitOfWork

HEARTBEAT_SECONDS = 10.0
WATCH_BATCH = 200
# Time to gather further events after the first, so that a burst costs an open watch few queries.
LINGER_SECONDS = 0.02
MAX_SEQ = 2**62

_COLUMNS = "seq, event_id, type, subject, tenant_id, generation, happened_at, traceparent, body::text AS body"

# Gives one page of a noun's items after a key: (unit of work, after or "", limit) -> (items, next key or None).
SnapshotSource = Callable[[UnitOfWork, str, int], Awaitable[tuple[list[dict[str, Any]], str | None]]]


def feed_router(service: str, snapshots: dict[str, SnapshotSource]) -> APIRouter:
    """Routes for other services only; no proxy lets them through."""
    router = APIRouter(prefix="/internal/v1", include_in_schema=False)

    @router.get(f"/events/{service}")
    async def read_feed(
        request: Request,
        _: ServiceCaller,
        after: Annotated[int, Query(ge=-MAX_SEQ, le=MAX_SEQ)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 500,
    ) -> Response:
        """Events after a sequence; 410 when they were deleted. A negative `after` is a count of events before the
        head, of those that are kept."""
        async with request.app.state.kernel.database.begin(SYSTEM) as unit:
            head = await _head(unit)
            if after < 0:
                after = max(head + after, await _oldest(unit, head) - 1)
            rows = await unit.fetch(f"SELECT {_COLUMNS} FROM outbox WHERE seq > $1 ORDER BY seq LIMIT $2", after, limit)
        if after < head and (not rows or rows[0]["seq"] != after + 1):
            raise ProblemError(ErrorCode.FEED_GONE, f"The feed does not reach back to {after}; load a snapshot.")
        events = ",".join(envelope_json(row, service) for row in rows)
        return Response(f'{{"head": {head}, "events": [{events}]}}', media_type="application/json")

    @router.get(f"/snapshot/{service}/{{noun}}")
    async def read_snapshot(
        request: Request,
        _: ServiceCaller,
        noun: str,
        after: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 500,
    ) -> JSONResponse:
        """One page of a noun's present state; `as_of_seq` was read before the rows."""
        source = snapshots.get(noun)
        if source is None:
            raise ProblemError(ErrorCode.OBJECT_NOT_FOUND, f"There is no snapshot {noun!r}.")
        async with request.app.state.kernel.database.begin(SYSTEM) as unit:
            as_of = await _head(unit)
            items, following = await source(unit, after, limit)
        return JSONResponse({"as_of_seq": as_of, "items": items, "next": following})

    @router.get(f"/jwks/{service}")
    async def read_keys(request: Request) -> JSONResponse:
        """The verification keys of tokens that this service issues."""
        async with request.app.state.kernel.database.begin(SYSTEM) as unit:
            rows = await unit.fetch("SELECT kid, public_key FROM signing_key WHERE issuer = $1", service)
        keys = [public_jwk(row["kid"], bytes(row["public_key"])).model_dump() for row in rows]
        return JSONResponse({"keys": keys})

    return router


async def _head(unit: UnitOfWork) -> int:
    return int(await unit.fetchval("SELECT last FROM outbox_counter WHERE name = 'outbox'"))


async def _oldest(unit: UnitOfWork, head: int) -> int:
    """The first sequence that is kept; the next one to come when none is."""
    return int(await unit.fetchval("SELECT coalesce(min(seq), $1 + 1) FROM outbox", head))


def public_router(service: str) -> APIRouter:
    """The watch and the audit trail of a service."""
    router = APIRouter(prefix="/v1", tags=[service])
    _add_watch(router, service)
    _add_audit(router, service)
    return router


def _add_watch(router: APIRouter, service: str) -> None:
    @router.get(
        f"/events/{service}",
        name=f"watch_{service}_events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def watch_events(
        request: Request,
        caller: ReaderCaller,
        after: Annotated[int | None, Query(ge=0, le=MAX_SEQ, description="resume after this sequence")] = None,
        follow: Annotated[bool, Query(description="false = end when everything up to now was sent")] = True,
        subject: Annotated[
            str | None,
            Query(max_length=128, pattern=r"^[^\x00]*$", description="only events of this object, by its id"),
        ] = None,
        last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=MAX_SEQ)] = None,
    ) -> StreamingResponse:
        """Sends events as they come: `id` is the sequence, `event` the type, `data` the envelope. Starts now.

        With a `subject` it starts with the oldest event of it that is kept.
        """
        wanted = after if last_event_id is None else last_event_id
        kernel = request.app.state.kernel
        async with kernel.database.begin(SYSTEM) as unit:
            head = await _head(unit)
            if subject is not None and wanted is None:
                wanted = await _oldest(unit, head) - 1
            start = head if wanted is None else wanted
            if start < min(head, await _oldest(unit, head) - 1):
                raise ProblemError(ErrorCode.FEED_GONE, f"Events after {start} are no longer kept; read the lists.")
        return StreamingResponse(
            kernel.rates.streamed(caller, _watch(request, service, start, follow, subject)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


def _add_audit(router: APIRouter, service: str) -> None:
    @router.get(f"/audit/{service}", name=f"list_{service}_audit")
    async def list_audit(
        request: Request,
        caller: AdminCaller,
        paging: Paging,
        times: Spanning,
        object: Annotated[str | None, Query(max_length=128, description="what it was done to: an id or a name")] = None,
        actor: Annotated[
            str | None, Query(max_length=128, description="who did it: an API key's id, or the actor as it is shown")
        ] = None,
        action: Annotated[
            str | None,
            Query(max_length=64, pattern=r"^[a-z_]+(\.[a-z_]+)*$", description="such as `job.submit`, or `job`"),
        ] = None,
        newest_first: bool = False,
    ) -> Page[AuditView]:
        """Who did what, oldest first unless told otherwise."""
        where = Where()
        where.after("id", paging.after_int(), is_descending=newest_first)
        where.add("object = {}", object)
        where.add("actor = ANY({}::text[])", None if actor is None else _actors(actor))
        where.add("(action = {0} OR starts_with(action, {0} || '.'))", action)
        where.within("at", times)
        async with request.app.state.kernel.database.begin(caller.scope) as unit:
            rows = await unit.fetch(
                f"SELECT * FROM audit{where.text()} ORDER BY id {'DESC' if newest_first else 'ASC'}"
                f" LIMIT {where.value(paging.limit + 1)}",
                *where.arguments,
            )
        return make_page(rows, paging, _audit_view, lambda row: int(row["id"]))


def _actors(text: str) -> list[str]:
    """How a key is written down as an actor: with the role that it had at that time."""
    return [text, *(f"{role.value}:{text}" for role in Role)]


def _audit_view(row: Any) -> AuditView:
    return AuditView(
        seq=row["seq"],
        at=row["at"],
        actor=row["actor"],
        role=row["role"],
        tenant_id=None if row["tenant_id"] is None else TenantId.of(row["tenant_id"]),
        action=row["action"],
        object=row["object"],
        before=row["before"],
        after=row["after"],
        request_id=row["request_id"],
        hash=None if row["hash"] is None else bytes(row["hash"]).hex(),
    )


async def _watch(
    request: Request, service: str, after: int, follow: bool, subject: str | None = None
) -> AsyncGenerator[str, None]:
    kernel = request.app.state.kernel
    credentials = request.headers.get("authorization")
    yield f": watching {service} after {after}\n\n"
    quiet = 0.0
    while True:
        woken = kernel.woken
        try:
            # Again and again: a key may be revoked, or change its role, while the watch is open.
            caller: Principal = await kernel.authenticator.authenticate(credentials)
            async with kernel.database.begin(caller.scope) as unit:
                rows = await _read_events(unit, after, subject)
        except ProblemError as error:
            yield f"event: problem\ndata: {json.dumps({'code': error.code.value, 'detail': error.detail})}\n\n"
            return
        except AWAY_ERRORS:
            yield ": the database does not answer\n\n"
            if await sleep_or_stop(kernel.stopping, 1.0):
                return
            continue
        for row in rows:
            after = int(row["seq"])
            yield f"id: {after}\nevent: {row['type']}\ndata: {envelope_json(row, service)}\n\n"
        if rows:
            quiet = 0.0
            continue
        if not follow or kernel.stopping.is_set():
            return
        if await sleep_or_stop(woken, 1.0):
            await asyncio.sleep(LINGER_SECONDS)
        else:
            quiet += 1.0
        if quiet >= HEARTBEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"


async def _read_events(unit: UnitOfWork, after: int, subject: str | None) -> list[Any]:
    """The next events that the unit's scope may see, of one object or of all."""
    wanted, arguments = ("", ()) if subject is None else (" AND subject = $3", (subject,))
    return await unit.fetch(
        f"SELECT {_COLUMNS} FROM outbox WHERE seq > $1{wanted} ORDER BY seq LIMIT $2", after, WATCH_BATCH, *arguments
    )


def health_router(service: str) -> APIRouter:
    """Liveness and readiness with reasons, and metrics."""
    router = APIRouter(include_in_schema=False)

    @router.get(f"/healthz/{service}")
    async def health(request: Request) -> JSONResponse:
        """Always 200 while the process lives: what is well; what is not, since when, what follows, what to do."""
        return JSONResponse(await request.app.state.kernel.health.tell())

    @router.get(f"/readyz/{service}")
    async def ready(request: Request) -> JSONResponse:
        """200 when the database answers, the schema is at head and keys are loaded; else 503 with the reason."""
        state = await request.app.state.kernel.health.tell()
        return JSONResponse(state, 200 if state["ready"] else 503)

    @router.get(f"/metrics/{service}")
    async def metrics() -> PlainTextResponse:
        """Prometheus metrics of this process."""
        return PlainTextResponse(generate_latest(), media_type="text/plain; version=0.0.4")

    return router
