"""The asynchronous client: made from the synchronous one, with nothing missing, and repeating in the same way."""

import inspect
from collections.abc import AsyncIterator

import httpx
import pytest

from millpond import AsyncClient, Client
from millpond.client.asynchronous.nouns import Noun as AsyncNoun
from millpond.client.errors import Unreachable
from millpond.client.nouns import Noun
from millpond.client.retries import RetryPolicy
from millpond_contracts.errors import ErrorCode
from tests.unit.client.fake_api import KEY, URL, FakeApi, page, problem
from tests.unit.client.things import tenant

pytestmark = pytest.mark.unit


def clients(api: FakeApi, **policy: int) -> tuple[Client, AsyncClient]:
    async def sleep(seconds: float) -> None:
        api.slept.append(seconds)

    return api.client(**policy), AsyncClient(
        URL, KEY, transport=api.transport(), retries=RetryPolicy(**policy), sleep=sleep
    )


def methods(thing: object) -> dict[str, list[str]]:
    """Public method -> its parameters."""
    found = inspect.getmembers(thing, inspect.ismethod)
    return {name: list(inspect.signature(method).parameters) for name, method in found if not name.startswith("_")}


def test_clients_when_compared_then_the_same_nouns_and_methods() -> None:
    one, other = clients(FakeApi())
    nouns = {name for name, value in vars(one).items() if isinstance(value, Noun)}
    assert nouns == {name for name, value in vars(other).items() if isinstance(value, AsyncNoun)}
    assert len(nouns) > 15
    for noun in nouns:
        assert methods(getattr(one, noun)) == methods(getattr(other, noun)), noun
    own = methods(one)
    assert {**own, "aclose": own["close"]}.keys() - {"close"} == methods(other).keys()


def test_methods_when_they_ask_the_api_then_they_wait_for_it() -> None:
    _, client = clients(FakeApi())
    lists = client.tenants.list()
    assert isinstance(lists, AsyncIterator)
    for noun in (client.jobs, client.nodes, client.statements):
        plain = [
            name
            for name, method in inspect.getmembers(noun, inspect.ismethod)
            if not name.startswith("_")
            and not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method))
            and "AsyncIterator" not in str(inspect.signature(method).return_annotation)
        ]
        assert plain == []


async def test_call_when_told_to_come_again_then_it_is_sent_again() -> None:
    api = FakeApi()
    busy = problem(ErrorCode.RATE_LIMITED, "busy", {"Retry-After": "3"})
    api.on("GET", "/v1/tenants", busy, page([tenant()]))
    _, client = clients(api)
    async with client:
        assert [each.name async for each in client.tenants.list()] == ["acme"]
    assert api.slept == [3.0]


async def test_call_when_nobody_answers_then_unreachable_after_some_tries() -> None:
    api = FakeApi().on("GET", "/v1/me", httpx.ConnectError("refused"))
    _, client = clients(api, attempts=3)
    async with client:
        with pytest.raises(Unreachable):
            await client.me()
    assert (len(api.requests), len(api.slept)) == (3, 2)


async def test_list_when_it_has_pages_then_all_are_read() -> None:
    api = FakeApi().on("GET", "/v1/tenants", page([tenant()], "more"), page([tenant()]))
    _, client = clients(api)
    async with client:
        assert len([each async for each in client.tenants.list()]) == 2
    assert [dict(each.url.params).get("cursor") for each in api.requests] == [None, "more"]
