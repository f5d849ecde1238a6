"""The kernels beside NumPy: the same verdicts, scores, rows and devices, whatever changes between two questions."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.bodies.groups import TaskKind
from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.ids import TaskId
from millpond_contracts.resources import DeviceKind, Isolation
from millpond_scheduler.domain import checks, kernel_layout, kernels, policy
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.compiled import compile_kernel
from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix, Packing, Price
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord, NodeSize, PoolRules
from millpond_scheduler.domain.plans import Holding
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scoring import NUMBERS, Kernel, Numbers, Scorer, number_ranks
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, Reason
from millpond_scheduler.domain.views import RowView
from tests.unit.scheduler.world import OTHER_POOL, POOL, RIVAL, TENANT, node, request

pytestmark = pytest.mark.unit

PLAIN = kernels.refresh
PROFILES = (
    DeviceProfile(DeviceKind.GPU, "a100", 80_000, (("bf16_tflops", 312.0),)),
    DeviceProfile(DeviceKind.GPU, "t4", 16_000, (("bf16_tflops", 65.0),)),
    DeviceProfile(DeviceKind.GPU, "unknown", None),
)
REQUESTS = (
    request(4_000, 16_000),
    request(2_000, count=1),
    request(2_000, count=2, tenant=RIVAL),
    request(1_000, count=2, task_kind=TaskKind.TRAINING, allow_unknown=True),
    request(1_000, count=1, milli=300),
    request(0, count=1, milli=500, tenant=RIVAL, flavors=("a100",)),
    request(1_000, count=1, milli=810, task_kind=TaskKind.TRAINING, allow_unknown=True),
    request(500, count=1, milli=None, slice_memory=6_000),
    request(500, count=1, milli=250, slice_memory=9_000, labels=(("zone", "a"),)),
    request(3_000, count=1, pool=OTHER_POOL),
)
RULES = tuple(
    PoolRules(sharing, allow_shared_users=shared, dedicated_to=owner)
    for sharing in DeviceSharing
    for shared in (True, False)
    for owner in (None, RIVAL)
)
MIX = DemandMix.of(
    {
        DemandClass(2_000, 1, 1000, ("a100", "t4")): 5,
        DemandClass(1_000, 1, 300, ("a100",)): 3,
        DemandClass(6_000, 1, 810, ("t4",)): 2,
        DemandClass(8_000, 2, 1000, ("a100", "t4")): 2,
    }
)
PRICES = {
    NodeSize(flavor, count, cpu, 262_144): Price(200_000 // count, 300_000)
    for flavor, count, cpu in product(("a100", "t4"), (1, 2, 4), (2_000, 8_000, 32_000))
}
PACKINGS = (Packing(), Packing(MIX), Packing(MIX, PRICES, 40))


class Pool:
    """A pool that changes at random, and what is remembered of it from one change to the next."""

    def __init__(self, chance: random.Random, kernel: Kernel, nodes: int) -> None:
        self.chance = chance
        self.snapshot = Snapshot()
        self.tasks = 0
        self.pairs = [
            (Candidates(self.snapshot, wanted), Candidates(self.snapshot, wanted, kernel=kernel)) for wanted in REQUESTS
        ]
        for number in range(1, nodes + 1):
            self.snapshot.upsert_node(self.make_node(number, 1))
        self.snapshot.set_packing(POOL, PACKINGS[1])

    def make_node(self, number: int, version: int) -> NodeRecord:
        chance = self.chance
        profiles = [chance.choice(PROFILES)] * 4 if chance.random() < 0.6 else chance.choices(PROFILES, k=4)
        blank = node(
            number,
            chance.choice((0, 1, 2, 4)),
            cpu=chance.choice((2_000, 8_000, 32_000)),
            labels={"zone": chance.choice("ab")},
            pool=chance.choice((POOL, POOL, POOL, OTHER_POOL)),
            state=chance.choice((NodeState.READY, NodeState.READY, NodeState.READY, NodeState.UNREACHABLE)),
            cordons=frozenset({CordonReason.OPERATOR} if chance.random() < 0.1 else ()),
            isolation=chance.choice((Isolation.USER, Isolation.USER, Isolation.NONE)),
            version=version,
        )
        devices = tuple(
            DeviceRecord(device.id, profile, chance.random() < 0.9)
            for device, profile in zip(blank.devices, profiles, strict=False)
        )
        return replace(blank, devices=devices)

    def change(self) -> None:
        """Places, releases, changes a node or a rule."""
        kind = self.chance.random()
        held = self.snapshot.list_holdings()
        if kind < 0.55:
            self.place(self.chance.choice(self.pairs)[0])
        elif kind < 0.75 and held:
            self.snapshot.release_allocation(self.chance.choice(held).task)
        elif kind < 0.9:
            nodes = [record for _, record in self.snapshot.list_nodes()]
            changed = self.chance.choice(nodes)
            self.snapshot.upsert_node(
                self.make_node(changed.id.int >> 65, changed.version + 1)
                if kind < 0.85
                else replace(node(len(nodes) + 1, 4), devices=node(len(nodes) + 1, 3).devices)
            )
        elif kind < 0.95:
            self.snapshot.set_rules(POOL, self.chance.choice(RULES))
        else:
            self.snapshot.set_packing(POOL, self.chance.choice(PACKINGS))

    def place(self, candidates: Candidates) -> None:
        row, wanted = candidates.find_best(), candidates.request
        if row is None:
            return
        self.tasks += 1
        picks, owner = candidates.pick_devices(row), self.snapshot.record_at(row).id
        if self.chance.random() < 0.1:
            picks = tuple(pick._replace(milli=125, profile="1g", slots=1) for pick in picks[:1])
        holding = Holding(TaskId(int=self.tasks), owner, wanted.tenant, wanted.cpu_milli, wanted.memory_mib, picks)
        self.snapshot.apply_allocation(holding)

    def find_differences(self, pairs: Sequence[tuple[Candidates, Candidates]]) -> list[str]:
        """Where one of both does not remember what whoever looks for the first time sees."""
        found = []
        kept_free = set(range(0, self.snapshot.columns.rows, 2))
        for by_numpy, by_kernels in pairs:
            fresh = Candidates(self.snapshot, by_numpy.request)
            best = find_by_looking_at_all(self.snapshot, fresh)
            for name, kept in (("numpy", by_numpy), ("kernels", by_kernels)):
                same = {
                    "codes": kept.codes.tolist() == fresh.codes.tolist(),
                    "scores": kept.scores.tolist() == fresh.scores.tolist(),
                    "best": kept.find_best() == best,
                    "best of some": kept.find_best(kept_free) == fresh.find_best(kept_free),
                }
                found += [f"{name}: {what} of {kept.request}" for what, is_same in same.items() if not is_same]
            for row in np.flatnonzero(fresh.codes == 0).tolist():
                slots = [self.snapshot.find_slot(pick.device) for pick in by_kernels.pick_devices(row)]
                if slots != policy.pick_slots(RowView(self.snapshot, fresh.fits, np.array([row]))):
                    found.append(f"devices of row {row} for {fresh.request}")
                elif by_kernels.pick_devices(row) != fresh.pick_devices(row):
                    found.append(f"amounts on row {row} for {fresh.request}")
        return found


def find_by_looking_at_all(snapshot: Snapshot, candidates: Candidates) -> int | None:
    scores = candidates.scores.tolist()
    open_ = [row for row in range(len(scores)) if scores[row] != policy.BLOCKED]
    return min(open_, key=lambda row: (scores[row], snapshot.record_at(row).id.int), default=None)


@given(st.integers(0, 1 << 32))
@settings(max_examples=30, deadline=None)
def test_kernels_when_anything_changes_then_answer_like_numpy(seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool(chance, PLAIN, 6)
    for _ in range(12):
        for _ in range(chance.randint(1, 4)):
            pool.change()
        assert not pool.find_differences(chance.sample(pool.pairs, 4))


@given(st.integers(0, 1 << 32))
@settings(max_examples=15, deadline=None)
def test_cache_when_tenants_ask_alike_then_tells_each_what_it_would_be_told_alone(seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool(chance, PLAIN, 6)
    cache = CandidateCache(pool.snapshot, kernel=PLAIN)
    for _ in range(10):
        pool.change()
        for asked, tenant in product(chance.sample(REQUESTS, 3), (TENANT, RIVAL)):
            wanted = replace(asked, tenant=tenant)
            fresh, kept = Candidates(pool.snapshot, wanted), cache.get(wanted)
            assert kept.request == wanted
            assert (kept.codes.tolist(), kept.scores.tolist()) == (fresh.codes.tolist(), fresh.scores.tolist())


def test_cache_when_a_node_mixes_users_then_tenants_are_told_apart() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, 2))
    cache, mine, theirs = CandidateCache(snapshot), request(count=1), request(count=1, tenant=RIVAL)
    assert cache.get(mine).scores.base is cache.get(theirs).scores.base
    snapshot.upsert_node(node(2, 2, isolation=Isolation.NONE))
    assert cache.get(mine).scores.base is not cache.get(theirs).scores.base


def test_compiled_kernels_when_many_rows_change_then_answer_like_numpy() -> None:
    pool = Pool(random.Random(7), compile_kernel(), 300)
    for _ in range(8):
        for _ in range(60):
            pool.change()
        assert not pool.find_differences(pool.pairs)
    assert pool.tasks > 50  # placed in between


def test_policy_when_its_lists_are_read_then_kernels_know_all_of_it() -> None:
    others = [check for _, check in NUMBERS.others]
    assert others == [checks.has_affinity, checks.is_known_to_stand, checks.has_legal_start]
    assert number_ranks(policy.RANKS) is not None
    assert number_ranks(policy.RANKS_BY_FIT) is not None


def test_filter_when_kernels_do_not_know_it_then_it_takes_its_place_among_the_others() -> None:
    pool = Pool(random.Random(11), PLAIN, 40)
    for _ in range(40):
        pool.change()
    odd = (Reason.NO_ISOLATION, lambda view: np.arange(pool.snapshot.columns.rows)[view.rows] % 2 == 0)
    numbers = Numbers(policy.OPEN_FILTERS, [odd, *policy.FREE_FILTERS[:-1]])
    known = Numbers(policy.OPEN_FILTERS, policy.FREE_FILTERS[:-1])
    rows = np.arange(pool.snapshot.columns.rows)
    for fresh, _ in pool.pairs:
        fresh.refresh()
        codes, scores = np.zeros(len(rows), dtype=np.uint8), np.zeros(len(rows), dtype=np.int64)
        without = codes.copy()
        blocks = tuple(np.full(1, -1) for _ in range(3))
        for listed, found in ((known, without), (numbers, codes)):
            scorer = Scorer(pool.snapshot, fresh.fits, PLAIN, listed)
            scorer.kept = (found, scores, *blocks)
            scorer.prepare()
            scorer.refresh(-1)
        described = np.isin(without, [CODES[reason] for reason, _ in (*policy.OPEN_FILTERS, *policy.SHAPE_FILTERS)])
        expected = np.where(described | (rows % 2 == 0), without, CODES[Reason.NO_ISOLATION])
        assert codes.tolist() == expected.tolist()
        assert ((scores == policy.BLOCKED) == (codes != 0)).all()


def test_kernels_when_a_node_has_more_devices_than_they_count_then_numpy_goes_on() -> None:
    pool = Pool(random.Random(3), PLAIN, 6)
    assert not pool.find_differences(pool.pairs)
    pool.snapshot.upsert_node(node(9, kernel_layout.MAX_WIDTH + 1))
    assert not pool.find_differences(pool.pairs)


def test_best_row_when_ids_differ_in_their_last_bits_then_is_the_oldest() -> None:
    snapshot = Snapshot()
    for number in (7, 5, 6):
        snapshot.upsert_node(replace(node(number), id=type(node(1).id)(int=(1 << 127) + number)))
    wanted: RequestClass = request(1_000)
    assert [Candidates(snapshot, wanted, kernel=each).find_best() for each in (None, PLAIN)] == [1, 1]
