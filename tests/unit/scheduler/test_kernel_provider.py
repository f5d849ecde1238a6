"""Who scores: NumPy until the kernels are there, and wherever they are not wanted or cannot be had."""

import asyncio
import threading

import pytest

from millpond_scheduler.domain import blocks, kernels
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.scoring import KERNEL_NODES, Kernels
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.providers.kernels import KernelMode, KernelProvider

pytestmark = pytest.mark.unit

PLAIN = Kernels(kernels.refresh_rows, blocks.note_rows, blocks.find_first)


async def test_kernels_when_a_pool_is_large_then_come_while_numpy_serves() -> None:
    gate, cache = threading.Event(), CandidateCache(Snapshot())

    def load() -> Kernels:
        gate.wait(10)
        return PLAIN

    provider = KernelProvider(load=load)
    await provider.give(cache, KERNEL_NODES - 1)
    await provider.give(cache, KERNEL_NODES)
    assert not cache.has_kernels
    gate.set()
    while not cache.has_kernels:
        await provider.give(cache, KERNEL_NODES)
        await asyncio.sleep(0)


@pytest.mark.parametrize(("mode", "nodes", "expected"), [("numba", 1, True), ("numpy", 100_000, False)])
async def test_kernels_when_the_mode_says_so_then_are_there_at_once_or_never(
    mode: str, nodes: int, expected: bool
) -> None:
    cache = CandidateCache(Snapshot())
    await KernelProvider(KernelMode(mode), lambda: PLAIN).give(cache, nodes)
    assert cache.has_kernels is expected


async def test_kernels_when_they_cannot_be_had_then_numpy_goes_on() -> None:
    def load() -> Kernels:
        raise ImportError("no numba here")

    cache, provider = CandidateCache(Snapshot()), KernelProvider(KernelMode.NUMBA, load)
    for _ in range(2):
        await provider.give(cache, 1)
    assert not cache.has_kernels
