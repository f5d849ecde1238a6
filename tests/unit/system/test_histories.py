"""What a client may claim of an operation by the answers it got, and what the checker makes of such claims."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.system.checker import Facts, Fault, check_operations
from tests.system.client import Caller, History, Outcome

pytestmark = pytest.mark.unit

AWAY = httpx.Response(503, headers={"Retry-After": "0"})
GONE = httpx.ConnectError("nobody listens")


async def _perform(answers: Sequence[httpx.Response | Exception], **how: Any) -> tuple[History, list[httpx.Request]]:
    """Performs one operation that is answered so, the last answer again and again."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        given = answers[min(len(seen), len(answers)) - 1]
        if isinstance(given, Exception):
            raise given
        return given

    history = History()
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://stack") as http:
        await Caller(http, "key").perform(history.invoke("thing.create", "one"), "POST", "/v1/things", {}, **how)
    return history, seen


@pytest.mark.parametrize(
    ("answers", "how", "outcome", "attempts"),
    [
        ([httpx.Response(201)], {}, Outcome.OK, 1),
        ([httpx.Response(422)], {}, Outcome.FAIL, 1),
        ([AWAY, GONE, httpx.Response(201)], {}, Outcome.OK, 3),
        # Under one key a refusal speaks of the first request as well; without one it may be of what that one did.
        ([GONE, httpx.Response(409)], {}, Outcome.FAIL, 2),
        ([GONE, httpx.Response(409)], {"is_keyed": False}, Outcome.UNKNOWN, 2),
        ([GONE], {"if_match": '"1"'}, Outcome.UNKNOWN, 1),
        ([AWAY], {"seconds": 0.0}, Outcome.UNKNOWN, 1),
    ],
)
async def test_operation_when_answered_so_then_the_client_claims_no_more_than_it_knows(
    answers: Sequence[httpx.Response | Exception], how: dict[str, Any], outcome: Outcome, attempts: int
) -> None:
    history, seen = await _perform(answers, **how)
    one = history.operations[0]
    assert (one.outcome, one.attempts, len(seen)) == (outcome, attempts, attempts)
    assert {request.headers["X-Request-Id"] for request in seen} == {one.request_id}
    assert {request.headers["Idempotency-Key"] for request in seen} == {one.request_id}


async def test_operation_when_answered_500_then_it_is_kept_as_an_answer_that_nobody_can_act_upon() -> None:
    history, _ = await _perform([httpx.Response(500, text="oh"), AWAY, httpx.Response(201)])
    assert history.operations[0].refusals == ["500 oh"]


@pytest.mark.parametrize(
    ("outcome", "acknowledged", "rows", "faults"),
    [
        (Outcome.OK, "thing_1", 1, []),
        (Outcome.OK, "thing_1", 0, [Fault.LOST]),
        (Outcome.OK, "thing_1", 2, [Fault.DOUBLED]),
        (Outcome.OK, "thing_2", 1, [Fault.LOST]),
        (Outcome.UNKNOWN, None, 0, []),
        (Outcome.UNKNOWN, None, 1, []),
        (Outcome.UNKNOWN, None, 2, [Fault.DOUBLED]),
        (Outcome.FAIL, None, 0, []),
        (Outcome.FAIL, None, 1, [Fault.DOUBLED]),
    ],
)
def test_operations_when_the_audit_has_so_many_rows_then_lost_doubled_or_neither(
    outcome: Outcome, acknowledged: str | None, rows: int, faults: list[Fault]
) -> None:
    history = History()
    one = history.invoke("thing.create", "one")
    one.acknowledged = acknowledged
    one.settle(outcome)
    audit = [{"request_id": one.request_id, "action": "thing.create", "object": "thing_1"}] * rows
    facts = Facts(_Audit(audit), history, Caller(httpx.AsyncClient(), ""), [])
    asyncio.run(check_operations(facts))
    assert [finding.fault for finding in facts.findings] == faults


class _Audit:
    """The registry's audit holds these rows, all others none."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    async def fetch(self, query: str, *arguments: object) -> list[dict[str, Any]]:
        return self._rows if "registry.audit" in query else []
