"""What a service does with another's events (`Consumer`), and how it reads them: stream, feed, snapshots."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from millpond_contracts.events import Envelope, Event
from millpond_kernel.clients import ServiceAway, ServiceClient, json_of
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.messages import Message
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork

READ_COUNT = 500
# Asks the feed for all that it keeps.
EVERYTHING = 2**62

Handler = Callable[[UnitOfWork, Envelope, Any], Awaitable[None]]
# Has the effect of events that follow one another, in their order, in few statements.
BatchHandler = Callable[[UnitOfWork, Sequence[Any]], Awaitable[None]]
# Applies one page of a snapshot's items: rows of a view, changed only on a higher generation.
SnapshotHandler = Callable[[UnitOfWork, Sequence[dict[str, Any]]], Awaitable[None]]


class FeedGone(Exception):
    """The publisher's feed no longer reaches back to the cursor: a snapshot must be loaded."""


@dataclass(slots=True)
class Consumer:
    """What one service does with the events of one publisher.

    `handlers` maps an event class to its effect, `batch_handlers` to one that takes all events in a row that have the
    same. `snapshots` maps a noun of the publisher's snapshot routes to the effect of loading it, for a consumer that
    is new or too far behind. `clear` empties the views that `snapshots` fill, for a rebuild by hand. `after_batch` is
    called, outside any transaction, after each applied batch. `trouble` = what keeps it from its publisher, if
    anything, and since when on the process's clock.
    """

    name: str
    publisher: str
    handlers: Mapping[type[Event], Handler] = field(default_factory=dict)
    batch_handlers: Mapping[type[Event], BatchHandler] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotHandler] = field(default_factory=dict)
    after_batch: Callable[[], None] | None = None
    clear: Callable[[UnitOfWork], Awaitable[None]] | None = None
    lag: int = field(default=0, init=False)
    applied_seq: int = field(default=0, init=False)
    trouble: str | None = field(default=None, init=False)
    trouble_monotonic: float = field(default=0.0, init=False)
    is_ahead: bool = field(default=False, init=False)
    _by_type: dict[str, tuple[type[Event], Handler]] = field(init=False, repr=False)
    _in_batches: dict[str, tuple[type[Event], BatchHandler]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_type = {cls.type: (cls, handler) for cls, handler in self.handlers.items()}
        self._in_batches = {cls.type: (cls, handler) for cls, handler in self.batch_handlers.items()}

    def takes(self, message: Message) -> bool:
        """Whether this consumer has a handler for the event."""
        return message.type in self._by_type or message.type in self._in_batches

    async def dispatch(self, unit: UnitOfWork, message: Message) -> bool:
        """Has the effect of an event in `unit`; False when this consumer has no handler for its type."""
        return await self.dispatch_all(unit, [message]) == 1

    async def dispatch_all(self, unit: UnitOfWork, messages: Sequence[Message]) -> int:
        """Has the effects of events in `unit`, in their order; how many this consumer has a handler for."""
        known = list(filter(self.takes, messages))
        for batch_handler, together in groupby(known, self._batch_handler_of):
            if batch_handler is not None:
                events = [self._in_batches[one.type][0].model_validate_json(one.body()) for one in together]
                await batch_handler(unit, events)
                continue
            for message in together:
                cls, handler = self._by_type[message.type]
                await handler(unit, message.envelope(), cls.model_validate_json(message.body()))
        return len(known)

    def _batch_handler_of(self, message: Message) -> BatchHandler | None:
        found = self._in_batches.get(message.type)
        return None if found is None else found[1]


async def read_feed(feed: ServiceClient, publisher: str, after: int) -> tuple[int, list[Message]]:
    """The publisher's head and the next events after a sequence (negative: of the last so many).

    Raises:
        FeedGone: those events are no longer kept.
        ServiceAway: no answer, or none that can be read.
    """
    response = await feed.request(
        "GET", f"/internal/v1/events/{publisher}", params={"after": after, "limit": READ_COUNT}
    )
    if response.status_code == 410:
        raise FeedGone
    if response.status_code != 200:
        raise ServiceAway(f"{feed.name} answered {response.status_code} to its feed")
    page = json_of(response)
    return int(page["head"]), [Message.of(item) for item in page["events"]]


async def read_snapshot(
    feed: ServiceClient, publisher: str, noun: str
) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
    """The pages of a snapshot, each with the sequence that the publisher had reached before it was read."""
    after = ""
    while True:
        page = await feed.get_json(f"/internal/v1/snapshot/{publisher}/{noun}", {"after": after, "limit": READ_COUNT})
        yield int(page["as_of_seq"]), page["items"]
        if not page["next"]:
            return
        after = str(page["next"])


async def collect_snapshots(
    feed: ServiceClient, consumer: Consumer
) -> tuple[int, list[tuple[str, list[dict[str, Any]]]]]:
    """Every snapshot of a consumer: the oldest `as_of_seq`, and (noun, items) per page."""
    as_of: list[int] = []
    pages: list[tuple[str, list[dict[str, Any]]]] = []
    for noun in consumer.snapshots:
        async for seq, items in read_snapshot(feed, consumer.publisher, noun):
            as_of.append(seq)
            pages.append((noun, items))
    return min(as_of), pages


async def apply_snapshots(unit: UnitOfWork, consumer: Consumer, pages: list[tuple[str, list[dict[str, Any]]]]) -> None:
    """Fills the views of a consumer; those that it can `clear` are emptied first, so that nothing wrong stays."""
    if consumer.clear is not None:
        await consumer.clear(unit)
    for noun, items in pages:
        await consumer.snapshots[noun](unit, items)


async def read_cursor(unit: UnitOfWork, consumer: str, publisher: str) -> int:
    """The sequence up to which a consumer has applied its publisher's events; zero before the first."""
    seq = await unit.fetchval("SELECT seq FROM cursor WHERE consumer = $1 AND publisher = $2", consumer, publisher)
    return 0 if seq is None else int(seq)


async def lock_cursor(unit: UnitOfWork, consumer: Consumer) -> int:
    """The consumer's cursor, which does not move before the transaction ends."""
    await unit.execute(
        "INSERT INTO cursor (consumer, publisher, seq) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING",
        consumer.name,
        consumer.publisher,
    )
    seq = await unit.fetchval(
        "SELECT seq FROM cursor WHERE consumer = $1 AND publisher = $2 FOR UPDATE", consumer.name, consumer.publisher
    )
    return int(seq)


async def load_snapshots(database: Database, feed: ServiceClient, consumer: Consumer) -> int:
    """Brings a consumer that the feed no longer reaches up to its publisher's snapshots; where it goes on from.

    The cursor never moves back: another copy may have loaded a later snapshot and followed from there. A consumer
    without snapshots goes on with the oldest event that is kept, and raises an alarm, since it has missed some.
    """
    pages: list[tuple[str, list[dict[str, Any]]]] = []
    if consumer.snapshots:
        as_of, pages = await collect_snapshots(feed, consumer)
    else:
        head, kept = await read_feed(feed, consumer.publisher, -EVERYTHING)
        as_of = kept[0].seq - 1 if kept else head
        log.error("events_missed", consumer=consumer.name, publisher=consumer.publisher, continues_after=as_of)
        ALARMS.labels(database.service, "events_missed").inc()
    async with database.begin(SYSTEM) as unit:
        cursor = await lock_cursor(unit, consumer)
        if cursor >= as_of:
            return cursor
        await apply_snapshots(unit, consumer, pages)
        await unit.execute(
            "UPDATE cursor SET seq = $3, moved_at = clock_timestamp() WHERE consumer = $1 AND publisher = $2",
            consumer.name,
            consumer.publisher,
            as_of,
        )
    return as_of


def stream_fields(reply: Any) -> list[dict[bytes, bytes]]:
    """The field maps of an XREAD reply in the list shape (RESP2) or the map shape (RESP3)."""
    if not reply:
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], tuple | list):
        entries = [entry for group in entries for entry in group]
    return [fields for _, fields in entries]
