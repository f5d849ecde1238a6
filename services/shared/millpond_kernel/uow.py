"""The unit of work: one transaction with the events and audit rows that became true in it.

`commit` appears here and nowhere else. Events are inserted as the last statements before COMMIT, when every row lock is
held; that keeps the order of an entity's events equal to the order of its changes (decision record on events).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from millpond_contracts.events import Event
from millpond_contracts.ids import EventId, TenantId
from millpond_kernel.fail_points import FailPoint, pass_point
from millpond_kernel.observability import current_request_id

_current: ContextVar["UnitOfWork | None"] = ContextVar("millpond_unit_of_work", default=None)

_INSERT_OUTBOX = """
INSERT INTO outbox (event_id, type, subject, tenant_id, generation, body, happened_at, traceparent)
SELECT e, t, s, n, g, b::jsonb, coalesce(h, clock_timestamp()), p
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::bigint[], $6::text[], $7::timestamptz[], $8::text[])
     WITH ORDINALITY AS x(e, t, s, n, g, b, h, p, ord)
ORDER BY ord
"""

_INSERT_AUDIT = """
INSERT INTO audit (actor, role, tenant_id, action, object, before, after, request_id)
SELECT a, r, n, c, o, b::jsonb, f::jsonb, q
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
     WITH ORDINALITY AS x(a, r, n, c, o, b, f, q, ord)
ORDER BY ord
"""

# Both in one round trip: the audit's parameters follow the eight of the outbox.
_AUDIT_AFTER_OUTBOX = re.sub(r"[$]([1-8])", lambda found: f"${int(found[1]) + 8}", _INSERT_AUDIT)
_INSERT_BOTH = f"WITH audited AS ({_AUDIT_AFTER_OUTBOX}) {_INSERT_OUTBOX}"


class UnitOfWorkOpen(RuntimeError):
    """Something that must not happen inside a transaction was tried: a second transaction or a network call."""


class TransactionAborted(RuntimeError):
    """PostgreSQL answered ROLLBACK to COMMIT. Without this check the caller would believe in what never happened."""


def unit_of_work_open() -> bool:
    """Whether this task, or the task that started it, holds a transaction. Network clients then refuse to be called."""
    unit = _current.get()
    return unit is not None and not unit.ended


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to which object. `before` and `after` are JSON texts or None, free of secrets."""

    actor: str
    role: str
    tenant_id: TenantId | None
    action: str
    object: str
    before: str | None = None
    after: str | None = None


class WrittenEvent(NamedTuple):
    """An event as its outbox row tells it. `body` is JSON text; `happened_at` None = the database's clock."""

    type: str
    subject: str
    tenant_id: UUID | None
    generation: int
    body: str
    happened_at: datetime | None


class UnitOfWork:
    """One open transaction. SQL goes through `fetch`, `fetchrow`, `fetchval`, `execute`: text, with $1 … $n."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.wrote_events = False
        self.ended = False
        self._events: list[WrittenEvent] = []
        self._audit: list[AuditEntry] = []

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Marks the task as holding a transaction."""
        token = _current.set(self)
        try:
            yield
        finally:
            self.ended = True
            _current.reset(token)

    def emit(self, event: Event, happened_at: datetime | None = None) -> None:
        """Adds an event that becomes true with this transaction; `happened_at` defaults to the database's clock."""
        body = event.model_dump_json()
        self._events.append(
            WrittenEvent(event.type, event.subject(), event.tenant(), event.generation_of(), body, happened_at)
        )

    def emit_written(self, events: Iterable[WrittenEvent]) -> None:
        """Adds events that become true by the thousand, and that their publisher has therefore written itself."""
        self._events += events

    def record(self, entry: AuditEntry) -> None:
        """Adds an audit row to this transaction."""
        self._audit.append(entry)

    async def fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """All rows of the statement."""
        rows: list[asyncpg.Record] = await self.connection.fetch(statement, *arguments)
        return rows

    async def fetchrow(self, statement: str, *arguments: object) -> asyncpg.Record | None:
        """The first row, or None."""
        return await self.connection.fetchrow(statement, *arguments)

    async def fetchval(self, statement: str, *arguments: object) -> Any:
        """The first column of the first row, or None."""
        return await self.connection.fetchval(statement, *arguments)

    async def execute(self, statement: str, *arguments: object) -> int:
        """Runs the statement and tells how many rows it touched."""
        tag: str = await self.connection.execute(statement, *arguments)
        return int(tag.rsplit(" ", 1)[-1]) if tag[-1:].isdigit() else 0

    async def commit(self) -> None:
        """Writes audit rows and events, then commits. Called once, by `Database.begin`.

        Raises:
            TransactionAborted: a statement had failed and its error was swallowed, so nothing was committed.
        """
        if self._audit and self._events:
            columns = (*_event_columns(self._events), *_audit_columns(self._audit))
            await self.connection.execute(_INSERT_BOTH, *columns)
        elif self._audit:
            await self.connection.execute(_INSERT_AUDIT, *_audit_columns(self._audit))
        elif self._events:
            await self.connection.execute(_INSERT_OUTBOX, *_event_columns(self._events))
        self.wrote_events = bool(self._events)
        changes = bool(self._events or self._audit)
        if changes:
            pass_point(FailPoint.BEFORE_COMMIT)
        if await self.connection.execute("COMMIT") != "COMMIT":
            raise TransactionAborted("a statement of this unit of work failed; its error must leave the block")
        if changes:
            pass_point(FailPoint.AFTER_COMMIT)


def _event_columns(events: Sequence[WrittenEvent]) -> tuple[Sequence[Any], ...]:
    return (EventId.new_many(len(events)), *zip(*events, strict=True), [None] * len(events))


def _audit_columns(entries: Sequence[AuditEntry]) -> tuple[list[Any], ...]:
    request_id = current_request_id()
    return (
        [entry.actor for entry in entries],
        [entry.role for entry in entries],
        [entry.tenant_id for entry in entries],
        [entry.action for entry in entries],
        [entry.object for entry in entries],
        [entry.before for entry in entries],
        [entry.after for entry in entries],
        [request_id for _ in entries],
    )
