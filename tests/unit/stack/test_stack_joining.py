"""A machine joins its own stack also when the first answers do not come."""

from collections.abc import Iterator

import httpx
import pytest

from millpond.stack.errors import StackError
from millpond.stack.joining import has_capacity, make_join_token

pytestmark = pytest.mark.unit

Answer = httpx.Response | httpx.HTTPError
NODES = {"items": [{"schedulable": True, "pool_id": "pool_1"}]}


def answering(*answers: Answer) -> httpx.AsyncClient:
    """A client whose requests are answered in turn."""
    left: Iterator[Answer] = iter(answers)

    def answer(_: httpx.Request) -> httpx.Response:
        found = next(left)
        if isinstance(found, httpx.HTTPError):
            raise found
        return found

    return httpx.AsyncClient(base_url="http://stack.test", transport=httpx.MockTransport(answer))


async def test_join_token_when_the_first_answers_fail_then_it_is_asked_for_again() -> None:
    made = httpx.Response(201, json={"token": "secret"})
    async with answering(httpx.ReadTimeout("slow"), httpx.Response(503), made) as client:
        assert await make_join_token(client) == "secret"


@pytest.mark.parametrize("last", [httpx.Response(403, text="not you"), httpx.ConnectError("not you")])
async def test_join_token_when_none_comes_in_time_then_the_last_answer_is_told(last: Answer) -> None:
    async with answering(last) as client:
        with pytest.raises(StackError, match="not you"):
            await make_join_token(client, timeout_seconds=-1)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((httpx.Response(200, json=NODES), httpx.Response(200, json={"hosts": [{"available": 4}]})), True),
        ((httpx.Response(200, json=NODES), httpx.Response(200, json={"hosts": [{"available": 0}]})), False),
        ((httpx.Response(200, json={"items": []}),), False),
        ((httpx.Response(503),), False),
        ((httpx.ReadTimeout("slow"),), False),
        ((httpx.Response(200, json=NODES), httpx.ReadTimeout("slow")), False),
    ],
)
async def test_capacity_when_the_stack_is_asked_then_only_a_counted_node_will_do(
    answers: tuple[Answer, ...], expected: bool
) -> None:
    async with answering(*answers) as client:
        assert await has_capacity(client) is expected
