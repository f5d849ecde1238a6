"""The policies that a simulation may run: the product's own, and baselines to compare it with."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.plans import DevicePick
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class SimulatedPolicy:
    """A policy by name, and the cache of candidates that decides by it, made for a seed's run."""

    name: str
    policy: Policy
    cache: Callable[[Snapshot, Policy, int], CandidateCache]

    def make_cache(self, snapshot: Snapshot, seed: int) -> CandidateCache:
        """The candidates of one run."""
        return self.cache(snapshot, self.policy, seed)


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
    def __init__(self, snapshot: Snapshot, policy: Policy, seed: int) -> None:
        super().__init__(snapshot, distance=policy.distance)
        self._chance = random.Random(f"policy {seed}")
        self._random: dict[RequestClass, Candidates] = {}

    def get(self, request: RequestClass) -> Candidates:
        if request not in self._random:
            self._random[request] = _RandomCandidates(self.snapshot, request, self._chance)
        return self._random[request]


def _make_cache(snapshot: Snapshot, policy: Policy, _: int) -> CandidateCache:
    return CandidateCache(snapshot, 1024, policy.distance)


POLICIES = {
    each.name: each
    for each in (
        SimulatedPolicy("default", Policy(), _make_cache),
        SimulatedPolicy("random", Policy(), _RandomCache),
    )
}
