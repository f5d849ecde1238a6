"""Typed, time-ordered identifiers: `job_01k9…`, a UUIDv7 in Crockford base 32 behind a prefix.

Source of the layout: RFC 9562 section 5.7 (UUIDv7); alphabet: Crockford base 32, lower case.
"""

import os
import re
import threading
import time
import uuid
from functools import lru_cache
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_BODY = re.compile(f"[{_ALPHABET}]{{{_LENGTH}}}")
# Python reads base 32 with the digits 0-9a-v.
_TO_PYTHON = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_VERSION_7 = (0x7 << 76) | (0x2 << 62)
_WITHOUT_VERSION = ~((0xF << 76) | (0x3 << 62))

# What `uuid.UUID` keeps in its slots, set without its constructor, which takes several times as long to look at them.
_set_int = vars(uuid.UUID)["int"].__set__
_set_is_safe = vars(uuid.UUID)["is_safe"].__set__
_UNKNOWN = uuid.SafeUUID.unknown
# Of the ids of an event most stand in the next one too: tenant, virtual pool, pool, price, often node and device.
# So many are remembered for each field of a model.
_REMEMBERED = 64

_lock = threading.Lock()
_last: int = 0


def uuid7_int() -> int:
    """A UUIDv7 as an integer, strictly rising within this process even within one millisecond."""
    return uuid7_ints(1)[0]


def uuid7_ints(count: int) -> list[int]:
    """So many, rising."""
    global _last
    random = os.urandom(10 * count)
    found = []
    with _lock:
        instant = time.time_ns() // 1_000_000 << 80
        for start in range(0, 10 * count, 10):
            candidate = instant | int.from_bytes(random[start : start + 10], "big")
            candidate = (candidate & _WITHOUT_VERSION) | _VERSION_7
            if candidate <= _last:
                candidate = _last + 1
            _last = candidate
            found.append(candidate)
    return found


class TypedId(uuid.UUID):
    """A UUID that knows what it identifies. Stored as `uuid`, written as `<prefix>_<base 32>`.

    One that was read from text keeps it: what is read from one event or request is mostly written into another.
    """

    __slots__ = ("_text",)
    prefix: ClassVar[str] = ""
    _text: str | None

    @classmethod
    def new(cls) -> Self:
        """A fresh identifier, later than every earlier one of this process."""
        return cls._make(uuid7_int())

    @classmethod
    def new_many(cls, count: int) -> list[Self]:
        """So many fresh identifiers, in their order; for rows that are written by the hundred."""
        return [cls._make(number) for number in uuid7_ints(count)]

    @classmethod
    def of(cls, value: uuid.UUID) -> Self:
        """The same UUID as this type; for rows read from the database."""
        return cls._make(value.int)

    @classmethod
    def _make(cls, number: int) -> Self:
        made = object.__new__(cls)
        _set_int(made, number)
        _set_is_safe(made, _UNKNOWN)
        return made

    @classmethod
    def parse(cls, text: str) -> Self:
        """The identifier written as `text`.

        Raises:
            ValueError: wrong prefix, length, or a character outside the alphabet.
        """
        prefix, separator, body = text.partition("_")
        if not separator or prefix != cls.prefix:
            raise ValueError(f"expected an id that starts with '{cls.prefix}_', found {text[:40]!r}")
        if _BODY.fullmatch(body) is None:
            raise ValueError(f"expected {_LENGTH} characters of base 32 after '{cls.prefix}_', found {text[:40]!r}")
        number = int(body.translate(_TO_PYTHON), 32)
        if number >= 1 << 128:
            raise ValueError(f"{text[:40]!r} is beyond 128 bits")
        made = cls._make(number)
        _set_text(made, text)
        return made

    def __str__(self) -> str:
        text: str | None = getattr(self, "_text", None)
        if text is not None:
            return text
        n, p = self.int, _PAIRS
        # Written out: thousands a second are written, and a loop takes twice as long.
        return (
            f"{self.prefix}_{p[n >> 120]}{p[n >> 110 & 1023]}{p[n >> 100 & 1023]}{p[n >> 90 & 1023]}{p[n >> 80 & 1023]}"
            f"{p[n >> 70 & 1023]}{p[n >> 60 & 1023]}{p[n >> 50 & 1023]}{p[n >> 40 & 1023]}{p[n >> 30 & 1023]}"
            f"{p[n >> 20 & 1023]}{p[n >> 10 & 1023]}{p[n & 1023]}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        remembered = lru_cache(maxsize=_REMEMBERED)(cls.parse)

        def validate(value: Any) -> "TypedId":
            if isinstance(value, cls):
                return value
            if isinstance(value, str):
                return remembered(value)
            raise ValueError(f"expected an id such as '{cls.prefix}_…'")

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^{cls.prefix}_[0-9a-hjkmnp-tv-z]{{26}}$"}


_set_text = vars(TypedId)["_text"].__set__


class PoolId(TypedId):
    __slots__ = ()
    prefix = "pool"


class LoanId(TypedId):
    __slots__ = ()
    prefix = "loan"


class NodeId(TypedId):
    __slots__ = ()
    prefix = "node"


class DeviceId(TypedId):
    __slots__ = ()
    prefix = "dev"


class JoinTokenId(TypedId):
    __slots__ = ()
    prefix = "join"


class TenantId(TypedId):
    __slots__ = ()
    prefix = "ten"


class ProjectId(TypedId):
    __slots__ = ()
    prefix = "proj"


class ApiKeyId(TypedId):
    __slots__ = ()
    prefix = "key"


class VirtualPoolId(TypedId):
    __slots__ = ()
    prefix = "vpool"


class ReservationId(TypedId):
    __slots__ = ()
    prefix = "rsv"


class JobId(TypedId):
    __slots__ = ()
    prefix = "job"


class TaskId(TypedId):
    __slots__ = ()
    prefix = "task"


class AllocationId(TypedId):
    __slots__ = ()
    prefix = "alloc"


class PriceVersionId(TypedId):
    __slots__ = ()
    prefix = "price"


class PriceBookId(TypedId):
    __slots__ = ()
    prefix = "book"


class SegmentId(TypedId):
    __slots__ = ()
    prefix = "seg"


class StatementId(TypedId):
    __slots__ = ()
    prefix = "stmt"


class ExportId(TypedId):
    __slots__ = ()
    prefix = "exp"


class ScalingPolicyId(TypedId):
    __slots__ = ()
    prefix = "scale"


class ScalingDecisionId(TypedId):
    __slots__ = ()
    prefix = "decision"


class MoveOrderId(TypedId):
    __slots__ = ()
    prefix = "mvorder"


class PackingId(TypedId):
    __slots__ = ()
    prefix = "pack"


class NodeOrderId(TypedId):
    __slots__ = ()
    prefix = "norder"


class AlertId(TypedId):
    __slots__ = ()
    prefix = "alert"


class EventId(TypedId):
    __slots__ = ()
    prefix = "evt"
