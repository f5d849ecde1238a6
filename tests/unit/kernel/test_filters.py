"""The WHERE of a list: only what was asked for, values apart from the text."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID

import pytest

from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import JobId
from millpond_kernel.filters import EVER, Span, Where, span
from millpond_kernel.problem import ProblemError

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class _State(StrEnum):
    ON = "on"
    OFF = "off"


def test_where_when_nothing_is_asked_for_then_no_text() -> None:
    where = Where()
    where.add("name = {}", None)
    where.among("state", ())
    where.labelled("labels", ())
    where.within("at", EVER, "id")
    where.after("id", None)
    assert (where.text(), where.arguments) == ("", [])


def test_where_when_values_are_hostile_then_they_never_stand_in_the_text() -> None:
    where = Where()
    where.add("name = {}", "x' OR '1'='1")
    where.labelled("labels", ("a=b'c", "only"))
    where.among("state", (_State.OFF, _State.ON, _State.OFF))
    assert where.text() == " WHERE name = $1 AND labels @> $2 AND labels ? $3 AND state IN ('off', 'on')"
    assert where.arguments == ["x' OR '1'='1", {"a": "b'c"}, "only"]
    assert where.value(51) == "$4"


def test_within_when_the_column_has_a_time_ordered_id_then_ids_of_that_time_pass() -> None:
    made = JobId.new()
    now = datetime.now(UTC)
    where = Where()
    where.within("created_at", Span(now - timedelta(minutes=1), now + timedelta(minutes=1)), "id")
    assert where.text() == " WHERE created_at >= $1 AND created_at < $2 AND id >= $3 AND id < $4"
    _, _, least, beyond = where.arguments
    assert isinstance(least, UUID)
    assert isinstance(beyond, UUID)
    assert least <= made < beyond


def test_within_when_the_instant_is_before_every_id_then_all_ids_pass() -> None:
    where = Where()
    where.within("at", Span(datetime(1970, 1, 1, tzinfo=UTC), None), "id")
    assert where.arguments[1] == UUID(int=0)


async def test_span_when_it_is_empty_or_backwards_then_refused() -> None:
    for until in (NOON, NOON - timedelta(seconds=1)):
        with pytest.raises(ProblemError) as refused:
            await span(NOON, until)
        assert (refused.value.code, refused.value.errors[0].pointer) == (ErrorCode.BODY_INVALID, "/query/until")
    assert await span(None, NOON) == Span(None, NOON)
