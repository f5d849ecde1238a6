"""Logs: chunks by offset, gaps, the cut in the middle, pages that never split a character."""

import base64
from pathlib import Path

import pytest

from millpond_contracts.bodies.jobs import LogPage
from millpond_contracts.bodies.work import Assignment, LogChunk
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, NodeId
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError
from millpond_scheduler.providers.log_folder import LogFolder
from millpond_scheduler.usecases.logs import find_attempt, read_page, take_chunk
from millpond_scheduler.usecases.work import NodeCall
from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration


async def start(world: World) -> tuple[NodeId, Assignment]:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    return node.node_id, task


async def push(
    world: World, store: LogFolder, node: NodeId, task: Assignment, offset: int, data: bytes, **changes: object
) -> int:
    body = {
        "allocation_id": task.allocation_id,
        "epoch": task.epoch,
        "offset": offset,
        "data_base64": base64.b64encode(data).decode(),
        **changes,
    }
    async with world.database.begin(SYSTEM) as unit:
        call = NodeCall(node, world.pool.pool_id, 1)
        return (await take_chunk(unit, store, call, LogChunk.model_validate(body))).next_offset


async def page(world: World, store: LogFolder, job: JobId, offset: int = 0, limit: int = 1000) -> LogPage:
    async with world.database.begin(SYSTEM) as unit:
        attempt = await find_attempt(unit, job, None, None)
    return await read_page(store, attempt, offset, limit)


async def test_chunks_when_repeated_and_overlapping_then_the_text_is_kept_once(world: World, tmp_path: Path) -> None:
    store = LogFolder(tmp_path)
    node, task = await start(world)
    assert await push(world, store, node, task, 0, b"") == 0
    assert await push(world, store, node, task, 0, b"hello ") == 6
    assert await push(world, store, node, task, 0, b"hello ") == 6
    assert await push(world, store, node, task, 3, b"lo world\n") == 12
    assert (await page(world, store, task.job_id)).text == "hello world\n"
    assert await push(world, store, node, task, 12, b"end\n", ended=True) == 16
    last = await page(world, store, task.job_id, 12)
    assert (last.text, last.next_offset, last.ended, last.cut) == ("end\n", 16, True, False)


async def test_chunk_when_it_leaves_a_gap_then_refused_unless_the_agent_says_cut(world: World, tmp_path: Path) -> None:
    store = LogFolder(tmp_path)
    node, task = await start(world)
    await push(world, store, node, task, 0, b"begin\n")
    with pytest.raises(ProblemError) as refused:
        await push(world, store, node, task, 100, b"later\n")
    assert refused.value.code is ErrorCode.LOG_OFFSET_GAP
    assert await push(world, store, node, task, 100, b"later\n", cut=True) == 106
    first = await page(world, store, task.job_id)
    assert (first.text, first.next_offset) == ("begin\n", 6)
    second = await page(world, store, task.job_id, first.next_offset)
    assert second.text == "\n[... 94 bytes were left out ...]\nlater\n"
    assert (second.next_offset, second.cut) == (106, True)


async def test_chunk_when_epoch_or_node_is_not_its_own_then_refused(world: World, tmp_path: Path) -> None:
    store = LogFolder(tmp_path)
    node, task = await start(world)
    other = await world.add_node()
    with pytest.raises(ProblemError) as stale:
        await push(world, store, node, task, 0, b"x", epoch=task.epoch + 1)
    with pytest.raises(ProblemError) as foreign:
        await push(world, store, other.node_id, task, 0, b"x")
    with pytest.raises(ProblemError) as garbage:
        await push(world, store, node, task, 0, b"", data_base64="***")
    assert [error.value.code for error in (stale, foreign, garbage)] == [
        ErrorCode.ALLOCATION_EPOCH_STALE,
        ErrorCode.ALLOCATION_NOT_FOUND,
        ErrorCode.BODY_INVALID,
    ]


async def test_page_when_it_ends_inside_a_character_then_the_rest_comes_with_the_next(
    world: World, tmp_path: Path
) -> None:
    store = LogFolder(tmp_path)
    node, task = await start(world)
    await push(world, store, node, task, 0, "aaa损失".encode(), ended=True)
    texts, offset = [], 0
    while True:
        found = await page(world, store, task.job_id, offset, 5)
        texts.append(found.text)
        offset = found.next_offset
        if found.ended:
            break
    assert "".join(texts) == "aaa损失"
    assert texts[0] == "aaa"


async def test_page_when_the_log_so_far_ends_inside_a_character_then_it_waits_for_the_rest(
    world: World, tmp_path: Path
) -> None:
    store = LogFolder(tmp_path, piece_bytes=4)
    node, task = await start(world)
    text = "aa损失".encode()
    await push(world, store, node, task, 0, text[:4])
    found = [await page(world, store, task.job_id, offset) for offset in (0, 2)]
    assert [(one.text, one.next_offset) for one in found] == [("aa", 2), ("", 2)]
    await push(world, store, node, task, 4, text[4:])
    rest = await page(world, store, task.job_id, 2)
    assert (rest.text, rest.next_offset) == ("损失", 8)


async def test_page_when_text_was_left_out_inside_a_character_then_it_goes_on_behind(
    world: World, tmp_path: Path
) -> None:
    store = LogFolder(tmp_path)
    node, task = await start(world)
    await push(world, store, node, task, 0, "损".encode()[:2])
    await push(world, store, node, task, 100, b"later", cut=True)
    first = await page(world, store, task.job_id)
    assert (first.text, first.next_offset) == ("\N{REPLACEMENT CHARACTER}", 2)
    assert (await page(world, store, task.job_id, 2)).text.endswith("later")


async def test_folder_when_a_log_is_too_long_then_head_and_tail_stay_and_the_cut_is_marked(tmp_path: Path) -> None:
    store = LogFolder(tmp_path, piece_bytes=100, head_bytes=200, tail_pieces=2)
    allocation = AllocationId.new()
    text = b"".join(b"%09d\n" % number for number in range(100))
    for offset in range(0, len(text), 70):
        await store.append(allocation, offset, text[offset : offset + 70])
    kept = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert kept == 400
    assert await store.read(allocation, 0, 1000) == (0, text[:200])
    assert await store.read(allocation, 150, 30) == (150, text[150:180])
    assert await store.read(allocation, 200, 150) == (800, text[800:950])
    assert await store.read(allocation, 900, 1000) == (900, text[900:])
    assert await store.read(allocation, 1000, 1000) == (1000, b"")
    await store.remove(allocation)
    assert await store.read(allocation, 0, 1000) == (0, b"")
