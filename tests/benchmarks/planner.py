"""How many placements a second the pure scheduler plans: no database, one thread, CPU time, one JSON line per figure.

The queue mixes whole nodes, whole devices, fractions, memory slices and CPU-only tasks of several tenants over nodes of
four shapes that are 70 % full. Each round plans batches of 500 and gives the same number of old tasks back, so that
every figure is a steady state with warm scores; `cold` is the first batch of an empty cache. A gang is planned whole or
refused, then taken back.
"""

import random
import time
from dataclasses import dataclass, replace

from millpond_contracts.bodies.tenants import Limit, Limits
from millpond_contracts.ids import DeviceId, JobId, NodeId, PoolId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.resources import DeviceKind
from millpond_scheduler.domain.admission import VirtualPoolState
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.explain import explain
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord
from millpond_scheduler.domain.requests import DeviceDemand, Gang, QueuedTask, RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from tests.benchmarks.figures import shorten, tell

NODES = (1_200, 10_000)
RUNS = 10
SEED = 42
BATCH = 500
GANG = 512
TENANTS = 8
FULL_RATIO = 0.7
PLENTY = Limit(guaranteed=0, hard=1_000_000_000)

# flavor, device memory (MiB), devices, CPU (milli), memory (MiB)
SHAPES = (
    ("a100-80", 81920, 8, 96_000, 786_432),
    ("t4", 15360, 4, 64_000, 262_144),
    ("v100-32", 32768, 8, 96_000, 393_216),
    ("l20", 46068, 8, 128_000, 1_048_576),
)
# weight, cpu, memory, count, milli, slice memory; count 0 = CPU only
CLASSES = (
    (40, 8_000, 32_768, 1, 1000, None),
    (15, 4_000, 16_384, 1, 500, None),
    (10, 2_000, 8_192, 1, 250, None),
    (5, 2_000, 8_192, 1, None, 4_096),
    (5, 16_000, 65_536, 2, 1000, None),
    (3, 32_000, 131_072, 4, 1000, None),
    (2, 64_000, 196_608, 8, 1000, None),
    (20, 4_000, 16_384, 0, None, None),
)


@dataclass
class Cloud:
    """A pool with its tenants, and the running tasks in the order in which they came."""

    snapshot: Snapshot
    cache: CandidateCache
    virtual_pools: dict[VirtualPoolId, VirtualPoolState]
    requests: list[tuple[int, VirtualPoolId, RequestClass]]
    random: random.Random
    running: list[TaskId]

    def draw(self, count: int) -> list[QueuedTask]:
        weights = [weight for weight, _, _ in self.requests]
        chosen = self.random.choices(self.requests, weights, k=count)
        return [
            QueuedTask(TaskId.new(), JobId.new(), virtual_pool, request, 50, index)
            for index, (_, virtual_pool, request) in enumerate(chosen)
        ]

    def plan(self, queue: list[QueuedTask]) -> int:
        """Plan one batch and keep it; the number of placements."""
        plan = plan_batch(self.snapshot, queue, self.virtual_pools, 0, max_tasks=len(queue), cache=self.cache)
        self.snapshot.keep()
        self.running += [placement.holding.task for placement in plan.placements]
        return len(plan.placements)

    def release(self, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            # The last one takes its place: to close the gap in half a million is no part of a decision.
            chosen = self.random.randrange(len(self.running))
            self.running[chosen], self.running[-1] = self.running[-1], self.running[chosen]
            self.snapshot.release_allocation(self.running.pop())


def build_cloud(nodes: int, seed: int) -> Cloud:
    """A pool of so many nodes, filled to FULL_RATIO of its device milli."""
    chance, pool, snapshot = random.Random(seed), PoolId.new(), Snapshot()
    total = 0
    for index in range(nodes):
        flavor, device_memory, count, cpu, memory = SHAPES[index % len(SHAPES)]
        profile = DeviceProfile(DeviceKind.GPU, flavor, device_memory)
        devices = tuple(DeviceRecord(DeviceId.new(), profile) for _ in range(count))
        snapshot.upsert_node(NodeRecord(NodeId.new(), pool, cpu, memory, devices))
        total += 1000 * count
    limits = Limits(cpu=PLENTY, memory=PLENTY, devices={shape[0]: PLENTY for shape in SHAPES})
    virtual_pools: dict[VirtualPoolId, VirtualPoolState] = {}
    requests = []
    for _ in range(TENANTS):
        state = VirtualPoolState(VirtualPoolId.new(), TenantId.new(), pool, limits)
        virtual_pools[state.id] = state
        for weight, cpu, memory, count, milli, slice_memory in CLASSES:
            demand = DeviceDemand(count, milli, slice_memory, DeviceKind.GPU) if count else None
            requests.append((weight, state.id, RequestClass(state.tenant, pool, cpu, memory, demand)))
    cloud = Cloud(snapshot, CandidateCache(snapshot), virtual_pools, requests, chance, [])
    held = 0
    while held < FULL_RATIO * total:
        before = len(cloud.running)
        if not cloud.plan(cloud.draw(BATCH)):
            break
        for task in cloud.running[before:]:
            holding = snapshot.find_holding(task)
            held += holding.device_milli if holding else 0
    return cloud


def measure() -> None:
    """Both sizes, one after the other."""
    for nodes in NODES:
        _measure_nodes(nodes)


def _measure_nodes(nodes: int) -> None:
    began = time.thread_time()
    cloud = build_cloud(nodes, SEED)
    tell(f"planner.fill_s.n{nodes}", [time.thread_time() - began], "s")
    rates, latencies = [], []
    for _ in range(RUNS):
        placed, seconds = time_batch(cloud)
        rates.append(placed / seconds)
        latencies.append(seconds * 1000)
        cloud.release(placed)
    tell(f"planner.decisions_per_s.n{nodes}", rates, "1/s")
    tell(f"planner.batch_ms.n{nodes}", latencies, "ms", tasks=BATCH)
    _measure_gang(cloud, nodes)
    cloud.cache = CandidateCache(cloud.snapshot)
    placed, seconds = time_batch(cloud)
    tell(f"planner.cold_decisions_per_s.n{nodes}", [placed / seconds], "1/s")
    task = cloud.draw(1)[0]
    began = time.thread_time()
    explain(cloud.snapshot, task, cloud.virtual_pools)
    tell(f"planner.explain_ms.n{nodes}", [(time.thread_time() - began) * 1000], "ms")


def _measure_gang(cloud: Cloud, nodes: int) -> None:
    """A gang of whole devices that has room, and one of whole nodes of one flavor, of which one too few are empty."""
    requests = {
        request.devices.count: (virtual_pool, request)
        for _, virtual_pool, request in cloud.requests
        if request.devices is not None and request.devices.is_whole
    }
    virtual_pool, small = requests[1]
    large = requests[8][1]
    assert large.devices is not None, "it was chosen by its devices"
    _time_gangs(cloud, f"scheduler.gang_plan_ms.n{nodes}", virtual_pool, small, is_placed=True)
    whole_nodes = replace(large, cpu_milli=128_000, devices=replace(large.devices, flavors=frozenset({"l20"})))
    mark = cloud.snapshot.mark()
    alone = [QueuedTask(TaskId.new(), JobId.new(), virtual_pool, whole_nodes, 50, index) for index in range(nodes)]
    plan = plan_batch(cloud.snapshot, alone, cloud.virtual_pools, 0, max_tasks=nodes, cache=cloud.cache)
    for placement in plan.placements[1 - GANG :]:
        cloud.snapshot.release_allocation(placement.holding.task)
    _time_gangs(cloud, f"scheduler.gang_refused_ms.n{nodes}", virtual_pool, whole_nodes, is_placed=False)
    cloud.snapshot.undo_to(mark)


def _time_gangs(
    cloud: Cloud, name: str, virtual_pool: VirtualPoolId, request: RequestClass, *, is_placed: bool
) -> None:
    times = []
    for _ in range(RUNS):
        gang = Gang(JobId.new(), (("main", GANG),))
        queue = [QueuedTask(TaskId.new(), gang.job, virtual_pool, request, 50, index, gang) for index in range(GANG)]
        began = time.thread_time()
        plan = plan_batch(cloud.snapshot, queue, cloud.virtual_pools, 0, cache=cloud.cache)
        times.append((time.thread_time() - began) * 1000)
        cloud.snapshot.undo_to(plan.mark)
        assert len(plan.placements) == (GANG if is_placed else 0), f"{name}: {len(plan.placements)} were placed"
    tell(name, times, "ms", bar="< 100", tasks=GANG, slowest=shorten(max(times)))


def time_batch(cloud: Cloud) -> tuple[int, float]:
    """Plan one batch: placements, and seconds of CPU time, which neighbours on the machine do not disturb as much."""
    queue = cloud.draw(BATCH)
    begin = time.thread_time()
    placed = cloud.plan(queue)
    return placed, time.thread_time() - begin
