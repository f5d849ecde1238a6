"""Messages: an event's head is read from its text, the rest where it is wanted, whoever wrote it."""

import json
from datetime import UTC, datetime
from typing import cast
from uuid import uuid4

import asyncpg
import pytest

from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_contracts.ids import ApiKeyId
from millpond_kernel.messages import Message
from millpond_kernel.outbox import envelope_json

pytestmark = pytest.mark.unit

EVENT = ApiKeyRevoked(api_key_id=ApiKeyId(int=1), tenant_id=None, generation=3)
ENVELOPE = Envelope(
    seq=7,
    id=uuid4(),
    type=EVENT.type,
    source="quota",
    subject='odd","body":{"\\"',
    tenant_id=None,
    generation=3,
    happened_at=datetime.now(UTC),
    body=EVENT.model_dump(mode="json"),
)
ROW = {**ENVELOPE.model_dump(), "event_id": ENVELOPE.id, "body": json.dumps(ENVELOPE.body)}
RELAYED = envelope_json(cast(asyncpg.Record, ROW), ENVELOPE.source).encode()


@pytest.mark.parametrize(
    "message",
    [
        Message.read(RELAYED),
        Message.read(ENVELOPE.model_dump_json().encode()),
        Message.read(ENVELOPE.model_dump_json(indent=1).encode()),
        Message.of(json.loads(RELAYED)),
        Message.of({name: json.loads(RELAYED)[name] for name in sorted(json.loads(RELAYED))}),
    ],
    ids=["relay", "model", "indented", "feed", "other order"],
)
def test_message_when_read_in_any_form_then_the_same_event(message: Message) -> None:
    assert (message.seq, message.type) == (7, EVENT.type)
    assert message.envelope() == ENVELOPE
    assert ApiKeyRevoked.model_validate_json(message.body()) == EVENT


def test_message_when_the_relay_wrote_it_then_it_is_kept_as_it_is() -> None:
    assert Message.read(RELAYED).text is RELAYED


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", RELAYED[:-1], RELAYED[:40], b'{"seq":1,"type":"a.b.v1"}', b"\xff"],
    # Named, since processes that share the tests have to find the same ones: RELAYED holds ids that are new in each.
    ids=["nothing", "object", "list", "without its end", "cut", "without its body", "no text"],
)
def test_message_when_it_is_none_then_refused_as_a_reader_expects(text: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        Message.read(text)
