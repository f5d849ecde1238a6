"""Amounts as distinct, bounded types: integers in the smallest unit, money as exact decimals written as strings.

No float ever enters: a JSON number is refused where money is meant, a fraction where an integer is meant.
"""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from millpond_contracts.prices import EXACT

# Upper bounds that no machine or pool reaches but that keep every sum of a million nodes inside 63 bits.
MAX_CPU_MILLI = 100_000_000
MAX_MEMORY_MIB = 1_000_000_000
MAX_DEVICE_MILLI = 1_000_000_000
MAX_COUNT = 1_000_000
WHOLE_DEVICE_MILLI = 1000

_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def _written(value: object) -> object:
    # A number, as text too, would be read as seconds since 1970, which nobody means.
    if isinstance(value, datetime) or (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        return value
    raise ValueError("expected an instant with its zone as RFC 3339 text, such as 2026-11-30T12:00:00Z")


CpuMilli = Annotated[int, Field(strict=True, ge=0, le=MAX_CPU_MILLI, description="thousandths of a CPU core")]
MemoryMib = Annotated[int, Field(strict=True, ge=0, le=MAX_MEMORY_MIB, description="MiB")]
DeviceMilli = Annotated[int, Field(strict=True, ge=0, le=MAX_DEVICE_MILLI, description="thousandths of a device")]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=315_360_000, description="seconds")]
Generation = Annotated[int, Field(strict=True, ge=0, le=2**62)]
# With its zone, and far enough from the ends of the calendar to be converted to any other.
Instant = Annotated[
    AwareDatetime,
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), le=datetime(9000, 1, 1, tzinfo=UTC)),
    BeforeValidator(_written),
]

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
Label = Annotated[str, StringConstraints(min_length=0, max_length=128)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")]
Labels = Annotated[dict[LabelKey, Label], Field(max_length=64)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]

_DECIMAL_PATTERN = r"^-?(0|[1-9][0-9]{0,19})(\.[0-9]{1,24})?$"
_DECIMAL = re.compile(_DECIMAL_PATTERN)


class ExactDecimal(Decimal):
    """A decimal that JSON carries as a string: at most 20 digits before the point and 24 after it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.chain_schema(
            [
                core_schema.str_schema(pattern=_DECIMAL_PATTERN, max_length=46),
                core_schema.no_info_plain_validator_function(cls),
            ]
        )

        def from_python(value: Any) -> "ExactDecimal":
            # One function and no union, whose branches would stand in the pointers of problems.
            if isinstance(value, cls):
                return value
            if isinstance(value, str) and _DECIMAL.fullmatch(value):
                return cls(value)
            if isinstance(value, Decimal) and value.is_finite():
                return cls(value)
            raise ValueError('expected a decimal in plain notation written as a string, such as "1.25"')

        return core_schema.json_or_python_schema(
            json_schema=text,
            python_schema=core_schema.no_info_plain_validator_function(from_python),
            serialization=core_schema.plain_serializer_function_ser_schema(plain_decimal, when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": _DECIMAL_PATTERN, "examples": ["1.25"]}


def plain_decimal(value: Decimal) -> str:
    """The decimal in plain notation, without exponent or trailing zeros after the point."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


class Money(BaseModel):
    """An exact amount in one currency: `{"amount": "1.2345", "currency": "CNY"}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amount: ExactDecimal
    currency: Currency

    def __add__(self, other: "Money") -> "Money":
        if other.currency != self.currency:
            raise TypeError(f"cannot add {other.currency} to {self.currency}")
        return Money(amount=ExactDecimal(EXACT.add(self.amount, other.amount)), currency=self.currency)


def microseconds_between(start: datetime, end: datetime) -> int:
    """Whole microseconds from `start` to `end`, exact; negative when `end` is earlier."""
    delta = end - start
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
