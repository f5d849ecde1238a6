"""A consumer gives events in a row that have one batch handler to it together, and keeps the order of all."""

import json
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest

from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ApiKeyRevoked, LimitExhausted, RoleChanged
from millpond_contracts.ids import ApiKeyId
from millpond_kernel.outbox import envelope_json
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork

pytestmark = pytest.mark.unit

NO_UNIT = cast(UnitOfWork, None)


def _envelope(seq: int, kind: str) -> Envelope:
    body = {"api_key_id": str(ApiKeyId(int=seq)), "tenant_id": None, "role": "operator", "generation": seq}
    return Envelope(
        seq=seq,
        id=uuid4(),
        type=kind,
        source="quota",
        subject=str(seq),
        tenant_id=None,
        generation=seq,
        happened_at=datetime.now(UTC),
        body=body,
    )


async def test_dispatch_when_handlers_differ_then_batches_in_order() -> None:
    taken: list[Any] = []

    async def together(unit: UnitOfWork, events: Any) -> None:
        taken.append([event.generation for event in events])

    async def alone(unit: UnitOfWork, envelope: Envelope, event: Any) -> None:
        taken.append(event.generation)

    consumer = Consumer("c", "quota", {RoleChanged: alone}, {ApiKeyRevoked: together})
    revoked, changed, unknown = ApiKeyRevoked.type, RoleChanged.type, LimitExhausted.type
    kinds = [revoked, unknown, revoked, changed, changed, revoked]
    envelopes = [_envelope(seq, kind) for seq, kind in enumerate(kinds, 1)]

    assert await consumer.dispatch_all(NO_UNIT, envelopes) == 5
    assert taken == [[1, 3], 4, 5, [6]]
    assert await consumer.dispatch(NO_UNIT, envelopes[0])
    assert not await consumer.dispatch(NO_UNIT, envelopes[1])


def test_read_when_an_event_is_not_handled_then_only_its_number_and_type() -> None:
    consumer = Consumer("c", "quota", {RoleChanged: _nothing}, {ApiKeyRevoked: _nothing})
    for handled in (RoleChanged.type, ApiKeyRevoked.type):
        envelope = _envelope(7, handled)
        assert consumer.read(_as_relayed(envelope)) == envelope
        assert consumer.read(envelope.model_dump_json(indent=1).encode()) == envelope
    passed = consumer.read(_as_relayed(_envelope(8, LimitExhausted.type)))
    assert (passed.seq, passed.type, passed.body) == (8, LimitExhausted.type, {})
    # As an earlier version's relay wrote it.
    assert consumer.read(_envelope(9, LimitExhausted.type).model_dump_json(indent=1).encode()).body != {}


async def _nothing(*arguments: object) -> None:
    raise AssertionError(arguments)


def _as_relayed(envelope: Envelope) -> bytes:
    row = {**envelope.model_dump(), "event_id": envelope.id, "body": json.dumps(envelope.body)}
    return envelope_json(cast(asyncpg.Record, row), envelope.source).encode()
