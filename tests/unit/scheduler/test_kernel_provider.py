"""Who scores: NumPy until the kernels are there, and wherever they are not wanted or cannot be had."""

import asyncio
import threading

import pytest

from millpond_scheduler.domain import kernels
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.scoring import KERNEL_NODES, Kernel
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.providers.kernels import KernelMode, KernelProvider

pytestmark = pytest.mark.unit


async def test_kernels_when_a_pool_is_large_then_come_while_numpy_serves() -> None:
    gate, cache = threading.Event(), CandidateCache(Snapshot())

    def load() -> Kernel:
        gate.wait(10)
        return kernels.refresh

    provider = KernelProvider(load=load)
    await provider.give(cache, KERNEL_NODES - 1)
    await provider.give(cache, KERNEL_NODES)
    assert not cache.has_kernel
    gate.set()
    while not cache.has_kernel:
        await provider.give(cache, KERNEL_NODES)
        await asyncio.sleep(0)


@pytest.mark.parametrize(("mode", "nodes", "expected"), [("numba", 1, True), ("numpy", 100_000, False)])
async def test_kernels_when_the_mode_says_so_then_are_there_at_once_or_never(
    mode: str, nodes: int, expected: bool
) -> None:
    cache = CandidateCache(Snapshot())
    await KernelProvider(KernelMode(mode), lambda: kernels.refresh).give(cache, nodes)
    assert cache.has_kernel is expected


async def test_kernels_when_they_cannot_be_had_then_numpy_goes_on() -> None:
    def load() -> Kernel:
        raise ImportError("no numba here")

    cache, provider = CandidateCache(Snapshot()), KernelProvider(KernelMode.NUMBA, load)
    for _ in range(2):
        await provider.give(cache, 1)
    assert not cache.has_kernel
