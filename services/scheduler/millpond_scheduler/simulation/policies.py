"""The policies that a simulation may run: the product's own, and baselines to compare it with."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np

from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.plans import DevicePick
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scarcity import Scarcity, Setting
from millpond_scheduler.domain.scoring import KERNEL_NODES, load_kernel
from millpond_scheduler.domain.snapshot import Snapshot

_NEVER = 1 << 40


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """A policy by name, with its setting.

    `learns`: the pool is packed by what usually comes; otherwise by best fit, as where nothing came yet. `cache` makes
    the candidates that decide in a seed's run. `placement` is what an operator turns; jobs that wait in a replay get
    nodes kept free by it.
    """

    name: str
    learns: bool
    cache: Callable[[Snapshot, int], CandidateCache]
    setting: Setting = field(default_factory=Setting)
    placement: Policy = field(default_factory=Policy)

    def without_holds(self) -> "SimulatedPolicy":
        """The same policy that keeps no node free for anyone, however long it waited."""
        return replace(self, placement=replace(self.placement, hold_after_seconds=_NEVER))

    def tuned(self, setting: Setting) -> "SimulatedPolicy":
        """The same policy under another setting."""
        return replace(self, setting=setting)


class _RandomCandidates(Candidates):
    """Any node that passes the filters, and of it any device with room, as a seed has it."""

    def __init__(self, snapshot: Snapshot, request: RequestClass, chance: random.Random) -> None:
        super().__init__(snapshot, request)
        self._chance = chance

    def find_best(self, kept_free: Collection[int] = ()) -> int | None:
        rows = [row for row in np.flatnonzero(self.codes == 0).tolist() if row not in kept_free]
        return self._chance.choice(rows) if rows else None

    def pick_devices(self, row: int) -> tuple[DevicePick, ...]:
        demand, columns = self.request.devices, self._snapshot.columns
        if demand is None or demand.is_whole or demand.milli is None:
            return super().pick_devices(row)
        slots = np.flatnonzero(columns.device_milli_free[row] >= demand.milli).tolist()
        devices = self._snapshot.record_at(row).devices
        return (DevicePick(devices[self._chance.choice(slots)].id, demand.milli, 0),)


class _RandomCache(CandidateCache):
    def __init__(self, snapshot: Snapshot, seed: int) -> None:
        super().__init__(snapshot)
        self._chance = random.Random(f"policy {seed}")
        self._random: dict[RequestClass, Candidates] = {}

    def get(self, request: RequestClass) -> Candidates:
        if request not in self._random:
            self._random[request] = _RandomCandidates(self.snapshot, request, self._chance)
        return self._random[request]


def _make_cache(snapshot: Snapshot, _: int) -> CandidateCache:
    kernel = load_kernel() if snapshot.columns.rows >= KERNEL_NODES else None
    return CandidateCache(snapshot, 1024, kernel=kernel)


POLICIES = {
    each.name: each
    for each in (
        SimulatedPolicy("default", True, _make_cache),
        SimulatedPolicy("unpriced", True, _make_cache, Setting(scarcity=Scarcity())),
        SimulatedPolicy("best-fit", False, _make_cache),
        SimulatedPolicy("random", False, _RandomCache),
    )
}
