"""Microseconds of one decision with full scoring: CPU time of one thread, no database, one JSON line per figure.

Nodes of four shapes, of whose devices about 70 % are held, get single tasks of the classes that come most often in
the openb trace (Weng et al., USENIX ATC 2023), of two tenants; as many old tasks are given back. A decision chooses a
node by every filter and rank, and devices on it, and takes them; that a placement and a release make both nodes be
judged anew for every other class is part of the time. `planned` is the same as a batch of its own, with order, limits
and fair shares; `batched` in batches of 500.
"""

import random
import time
from collections import Counter
from collections.abc import Callable

from millpond_contracts.bodies.tenants import Limits
from millpond_contracts.ids import DeviceId, NodeId, PoolId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.resources import DeviceKind
from millpond_scheduler.domain.admission import VirtualPoolState
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.fragmentation import Packing
from millpond_scheduler.domain.mixes import find_mixes
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord
from millpond_scheduler.domain.plans import DevicePick, Holding
from millpond_scheduler.domain.requests import DeviceDemand, RequestClass
from millpond_scheduler.domain.scoring import load_kernel
from millpond_scheduler.domain.snapshot import Snapshot
from tests.benchmarks.figures import tell
from tests.benchmarks.planner import PLENTY, SHAPES, Cloud

BARS = {1_200: 100, 10_000: 100, 100_000: 150}
RUNS = 5
DECISIONS = 1_000
BATCH = 500
SEED = 42
TENANTS = 2

# how often of 1,000, CPU (milli), memory (MiB), devices, milli of each
CLASSES = (
    (128, 3_152, 5_600, 1, 810),
    (107, 11_300, 49_152, 1, 1000),
    (73, 11_400, 48_128, 1, 1000),
    (58, 3_152, 5_600, 1, 1000),
    (48, 11_908, 47_104, 1, 470),
    (45, 12_500, 57_344, 0, 0),
    (44, 8_000, 30_517, 1, 470),
    (40, 12_000, 24_576, 1, 1000),
    (36, 32_000, 49_152, 0, 0),
    (31, 18_708, 64_512, 1, 1000),
    (29, 11_908, 47_104, 1, 650),
    (28, 4_000, 22_888, 1, 320),
    (24, 9_810, 41_560, 1, 1000),
    (23, 8_000, 30_517, 0, 0),
    (20, 8_000, 16_384, 1, 1000),
    (20, 4_000, 24_576, 1, 1000),
    (19, 15_700, 58_368, 1, 1000),
    (19, 11_908, 47_104, 1, 1000),
    (18, 16_000, 32_768, 1, 1000),
    (15, 4_000, 30_517, 1, 230),
    (15, 6_000, 6_144, 1, 460),
    (12, 16_500, 51_200, 0, 0),
    (10, 24_200, 93_184, 1, 1000),
    (9, 8_000, 30_517, 1, 320),
    (9, 4_152, 10_600, 1, 550),
    (7, 4_000, 15_258, 1, 160),
    (6, 4_152, 10_600, 1, 370),
    (3, 1_000, 2_048, 1, 320),
    (2, 88_000, 327_680, 8, 1000),
)


def measure() -> None:
    """Every size, one after the other."""
    for nodes, bar in BARS.items():
        cloud = build_cloud(nodes)
        for name, decide in (("", _decide_alone), (".planned", _plan_alone), (".batched", _plan_batched)):
            runs = [_time(cloud, decide) for _ in range(RUNS + 1)][1:]  # the first one warms up
            tell(f"scheduler.decision_us.n{nodes}{name}", runs, "us", bar=None if name else f"<= {bar}")


def build_cloud(nodes: int) -> Cloud:
    """A pool of so many nodes, most of them full, some half full, some empty; what usually comes is known."""
    chance, pool, snapshot = random.Random(SEED), PoolId.new(), Snapshot()
    for index in range(nodes):
        flavor, device_memory, count, cpu, memory = SHAPES[index % len(SHAPES)]
        profile = DeviceProfile(DeviceKind.GPU, flavor, device_memory)
        devices = tuple(DeviceRecord(DeviceId.new(), profile) for _ in range(count))
        snapshot.upsert_node(NodeRecord(NodeId.new(), pool, cpu, memory, devices))
    limits = Limits(cpu=PLENTY, memory=PLENTY, devices={shape[0]: PLENTY for shape in SHAPES})
    states = [VirtualPoolState(VirtualPoolId.new(), TenantId.new(), pool, limits) for _ in range(TENANTS)]
    requests = [
        (weight, state.id, RequestClass(state.tenant, pool, cpu, memory, _demand(count, milli)))
        for state in states
        for weight, cpu, memory, count, milli in CLASSES
    ]
    counts = Counter({request: weight for weight, _, request in requests})
    snapshot.set_packing(pool, Packing(find_mixes(snapshot, counts)[pool]))
    cloud = Cloud(
        snapshot,
        CandidateCache(snapshot, kernel=load_kernel()),
        {state.id: state for state in states},
        requests,
        chance,
        [],
    )
    for row in range(nodes):
        _fill(cloud, row, chance.choice((1.0, 1.0, 1.0, 0.5, 0.0)))
    return cloud


def _demand(count: int, milli: int) -> DeviceDemand | None:
    return DeviceDemand(count, milli, None, DeviceKind.GPU) if count else None


def _fill(cloud: Cloud, row: int, share: float) -> None:
    """Lets a tenant hold each device to so much of it, with the CPU and memory that belong to that."""
    node, tenant = cloud.snapshot.record_at(row), cloud.random.choice(cloud.requests)[2].tenant
    for device in node.devices[: int(share * len(node.devices))]:
        milli = cloud.random.choice((1000, 1000, 1000, 810, 470))
        cpu, memory = node.cpu_milli // len(node.devices), node.memory_mib // len(node.devices)
        pick = DevicePick(device.id, milli, (device.profile.memory_mib or 0) * milli // 1000)
        holding = Holding(TaskId.new(), node.id, tenant, cpu * 3 // 4, memory * 3 // 4, (pick,))
        cloud.snapshot.apply_allocation(holding)
        cloud.running.append(holding.task)


def _time(cloud: Cloud, decide: Callable[[Cloud], tuple[int, float]]) -> float:
    """Microseconds a decision; each of them must have placed its task."""
    placed, seconds = decide(cloud)
    assert placed == DECISIONS, f"{placed} of {DECISIONS} tasks were placed"
    return seconds / placed * 1e6


def _decide_alone(cloud: Cloud) -> tuple[int, float]:
    tasks, snapshot = cloud.draw(DECISIONS), cloud.snapshot
    began = time.thread_time()
    for task in tasks:
        candidates, wanted = cloud.cache.get(task.request), task.request
        row = candidates.find_best()
        assert row is not None, "the pool is full"
        node, picks = snapshot.record_at(row).id, candidates.pick_devices(row)
        snapshot.place(Holding(task.id, node, wanted.tenant, wanted.cpu_milli, wanted.memory_mib, picks))
        snapshot.keep()
        cloud.running.append(task.id)
        cloud.release(1)
    return len(tasks), time.thread_time() - began


def _plan_alone(cloud: Cloud) -> tuple[int, float]:
    return _plan(cloud, 1)


def _plan_batched(cloud: Cloud) -> tuple[int, float]:
    return _plan(cloud, BATCH)


def _plan(cloud: Cloud, batch: int) -> tuple[int, float]:
    """Batches of so many tasks; after each as many old ones are given back."""
    tasks, placed = cloud.draw(DECISIONS), 0
    began = time.thread_time()
    for first in range(0, DECISIONS, batch):
        placed += cloud.plan(tasks[first : first + batch])
        cloud.release(batch)
    return placed, time.thread_time() - began
