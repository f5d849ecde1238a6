"""An event on its way from the relay to whoever reads it: JSON text, of which the head is enough for most.

Every service reads the whole stream of each publisher that it follows and has an effect for few of its events.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from millpond_contracts.events import Envelope

# How the relay begins an envelope (`outbox.envelope_json`), and what stands before the body, with which it ends.
# Inside a JSON string a quotation mark is never without its backslash, so the first of these is the body's.
_HEAD = re.compile(rb'{"seq":([0-9]+),"id":"[0-9a-f-]+","type":"([a-z0-9_.]+)"')
_BODY = b',"body":'


class Message(NamedTuple):
    """One event as it came: its number and its type, and the envelope as JSON with the body at its end."""

    seq: int
    type: str
    text: bytes

    @classmethod
    def read(cls, text: bytes) -> Self:
        """An event as a relay wrote it.

        Raises:
            ValueError, KeyError: it is none.
        """
        head = _HEAD.match(text)
        if head is None or not text.endswith(b"}}"):
            item = json.loads(text)
            if not isinstance(item, dict):
                raise ValueError("an event is a JSON object")
            return cls.of(item)
        return cls(int(head[1]), head[2].decode(), text)

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        """An event that was read as a JSON object: from the feed, or from those that were put aside."""
        attributes = {name: value for name, value in item.items() if name != "body"}
        text = json.dumps({**attributes, "body": item["body"]}, separators=(",", ":"), ensure_ascii=False)
        return cls(int(item["seq"]), str(item["type"]), text.encode())

    def body(self) -> bytes:
        """The event itself as JSON."""
        return self.text[self.text.index(_BODY) + len(_BODY) : -1]

    def envelope(self) -> Envelope:
        """Everything that is told of the event."""
        return Envelope.model_validate_json(self.text)
