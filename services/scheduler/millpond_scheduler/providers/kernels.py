"""Whether nodes are scored in machine code: compiled beside the leader's work, while NumPy gives the same answers."""

import asyncio
from collections.abc import Callable
from enum import StrEnum

from millpond_kernel.observability import log
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.scoring import KERNEL_NODES, Kernel, load_kernel


class KernelMode(StrEnum):
    """What scores nodes: NumPy, machine code, or machine code where there are many nodes."""

    AUTO = "auto"
    NUMBA = "numba"
    NUMPY = "numpy"


class KernelProvider:
    """Gives the kernel to whoever decides, as soon as it is there."""

    def __init__(self, mode: KernelMode = KernelMode.AUTO, load: Callable[[], Kernel] = load_kernel) -> None:
        self._mode = mode
        self._load = load
        self._loading: asyncio.Task[Kernel] | None = None

    async def give(self, cache: CandidateCache, nodes: int) -> None:
        """Has the cache use the kernel if it is wanted for so many nodes and ready; with `numba` waits for it."""
        is_wanted = self._mode is KernelMode.NUMBA or (self._mode is KernelMode.AUTO and nodes >= KERNEL_NODES)
        if not is_wanted or cache.has_kernel:
            return
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(self._load), name="kernels")
        if self._mode is KernelMode.NUMBA:
            await asyncio.wait([self._loading])
        if not self._loading.done():
            return
        if error := self._loading.exception():
            log.warning("kernels_missing", error=f"{error}"[:300])
            self._mode = KernelMode.NUMPY
        else:
            cache.use(self._loading.result())
