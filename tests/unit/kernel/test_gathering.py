"""Many asked for one thing each: done together, answered apart."""

import asyncio
from collections.abc import Sequence

import pytest

from millpond_kernel.db import DatabaseAway
from millpond_kernel.gathering import Gatherer
from millpond_kernel.observability import bound_request_id, current_request_id

pytestmark = pytest.mark.unit


class Deed:
    """Doubles numbers, notes what came together, and fails on what it is told to fail on."""

    def __init__(self, *poison: int, error: type[Exception] = ValueError) -> None:
        self.calls: list[list[int]] = []
        self.request_ids: set[str | None] = set()
        self.begun = asyncio.Event()
        self.poison = set(poison)
        self.error = error

    async def do(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        self.begun.set()
        self.request_ids.add(current_request_id())
        await asyncio.sleep(0)
        if self.poison & set(items):
            raise self.error(f"{items}")
        return [2 * item for item in items]


async def ask_all(gatherer: Gatherer[int, int], *items: int) -> list[int | BaseException]:
    return list(await asyncio.gather(*(gatherer.ask(item) for item in items), return_exceptions=True))


async def test_gatherer_when_many_ask_at_once_then_done_together_and_each_has_its_own_answer() -> None:
    deed = Deed()
    gatherer = Gatherer("numbers", deed.do, 0.0)
    with bound_request_id("of-the-first"):
        assert await ask_all(gatherer, 1, 2, 3) == [2, 4, 6]
    assert (deed.calls, deed.request_ids) == ([[1, 2, 3]], {None})


async def test_gatherer_when_some_ask_while_it_works_then_they_are_next_together() -> None:
    deed = Deed()
    gatherer = Gatherer("numbers", deed.do, 0.0)
    first = asyncio.create_task(gatherer.ask(1))
    await deed.begun.wait()
    assert await ask_all(gatherer, 2, 3) == [4, 6]
    assert (await first, deed.calls) == (2, [[1], [2, 3]])


async def test_gatherer_when_one_item_is_bad_then_the_others_are_done() -> None:
    deed = Deed(2)
    answers = await ask_all(Gatherer("numbers", deed.do, 0.0), 1, 2, 3)
    assert (answers[0], type(answers[1]), answers[2]) == (2, ValueError, 6)
    assert deed.calls == [[1, 2, 3], [1], [2], [3]]


async def test_gatherer_when_the_database_is_away_then_all_hear_of_it_at_once() -> None:
    deed = Deed(2, error=DatabaseAway)
    assert {type(answer) for answer in await ask_all(Gatherer("numbers", deed.do, 0.0), 1, 2, 3)} == {DatabaseAway}
    assert deed.calls == [[1, 2, 3]]


async def test_gatherer_when_somebody_has_gone_before_its_turn_then_nothing_is_done_for_it() -> None:
    deed = Deed()
    gatherer = Gatherer("numbers", deed.do, 0.0)
    gone, stays = asyncio.create_task(gatherer.ask(1)), asyncio.create_task(gatherer.ask(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays, deed.calls) == (4, [[2]])


async def test_gatherer_when_items_weigh_more_than_is_done_at_once_then_so_many_as_fit_and_a_heavy_one_alone() -> None:
    deed = Deed()
    gatherer = Gatherer("numbers", deed.do, 0.0, lambda item: item)
    assert await ask_all(gatherer, 100, 156, 1, 300, 2) == [200, 312, 2, 600, 4]
    assert deed.calls == [[100, 156], [1], [300], [2]]
