"""The same arrivals packed under one setting after another.

A task goes where the scheduler's own ranking on the same snapshot puts it, so that as much is allocated as in a run of
`openb`. Left out is what no setting changes: limits, which bind nothing there, turns, and what is told of the refused.
What the hardware is to each request is asked once for all settings.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from millpond_contracts.ids import TaskId
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.plans import Holding
from millpond_scheduler.domain.scarcity import Setting
from millpond_scheduler.simulation.arrivals import draw_arrivals, permute_nodes
from millpond_scheduler.simulation.policies import SimulatedPolicy
from millpond_scheduler.simulation.pool import build_pool, find_mix, request_of, take_setting
from millpond_scheduler.simulation.traces import TraceJob, TraceNode


class Filling:
    """A seed's arrivals at an empty pool, which has learned what usually comes from the whole list."""

    def __init__(
        self, nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], policy: SimulatedPolicy, seed: int
    ) -> None:
        self._pool = build_pool(permute_nodes(nodes, seed))
        requests = [request_of(job) for job in jobs]
        snapshot, came = self._pool.snapshot, Counter(requests)
        self._mix = find_mix(snapshot, came)
        cache = policy.cache(snapshot, seed)
        candidates = {request: cache.get(request) for request in came}
        arrivals = [arrival.job for arrival in draw_arrivals(jobs, self._pool.device_milli, seed)]
        self._candidates = [candidates[requests[job]] for job in arrivals]
        self._arrived = list(accumulate(jobs[job].device_milli for job in arrivals))

    def play(self, setting: Setting, loads: Sequence[int]) -> dict[int, float]:
        """What is allocated under a setting, in percent, when so many percent of the devices were asked for."""
        capacity, snapshot = self._pool.device_milli, self._pool.snapshot
        take_setting(snapshot, self._mix, setting)
        refused: set[int] = set()
        allocated, arrived, found = 0, 0, dict[int, float]()
        for load in sorted(loads):
            end = sum(milli * 100 <= load * capacity for milli in self._arrived)
            for number in range(arrived, end):
                candidates = self._candidates[number]
                # Nothing ends, so what was refused once is refused for ever.
                if id(candidates) not in refused:
                    milli = self._place(number, candidates)
                    allocated += milli or 0
                    if milli is None:
                        refused.add(id(candidates))
            arrived = end
            found[load] = 100 * allocated / capacity
        snapshot.undo_to(0)
        return found

    def _place(self, number: int, candidates: Candidates) -> int | None:
        """The device milli that an arrival gets; None when it fits nowhere."""
        row = candidates.find_best()
        if row is None:
            return None
        snapshot, request = self._pool.snapshot, candidates.request
        picks = candidates.pick_devices(row)
        node = snapshot.record_at(row).id
        task = TaskId(int=number + 1)
        holding = Holding(task, node, request.tenant, request.cpu_milli, request.memory_mib, picks)
        snapshot.place(holding)
        return holding.device_milli
