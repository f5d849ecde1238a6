"""A consumer gives events in a row that have one batch handler to it together, and keeps the order of all."""

from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

import pytest

from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ApiKeyRevoked, LimitExhausted, RoleChanged
from millpond_contracts.ids import ApiKeyId
from millpond_kernel.messages import Message
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork

pytestmark = pytest.mark.unit

NO_UNIT = cast(UnitOfWork, None)


def _message(seq: int, kind: str) -> Message:
    body = {"api_key_id": str(ApiKeyId(int=seq)), "tenant_id": None, "role": "operator", "generation": seq}
    envelope = Envelope(
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
    return Message.of(envelope.model_dump(mode="json"))


async def test_dispatch_when_handlers_differ_then_batches_in_order() -> None:
    taken: list[Any] = []

    async def together(unit: UnitOfWork, events: Any) -> None:
        taken.append([event.generation for event in events])

    async def alone(unit: UnitOfWork, envelope: Envelope, event: Any) -> None:
        taken.append(event.generation)

    consumer = Consumer("c", "quota", {RoleChanged: alone}, {ApiKeyRevoked: together})
    revoked, changed, unknown = ApiKeyRevoked.type, RoleChanged.type, LimitExhausted.type
    kinds = [revoked, unknown, revoked, changed, changed, revoked]
    messages = [_message(seq, kind) for seq, kind in enumerate(kinds, 1)]

    assert await consumer.dispatch_all(NO_UNIT, messages) == 5
    assert taken == [[1, 3], 4, 5, [6]]
    assert await consumer.dispatch(NO_UNIT, messages[0])
    assert not await consumer.dispatch(NO_UNIT, messages[1])
