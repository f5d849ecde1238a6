"""The whole placement policy: which nodes may take a task, which of them takes it, and which of its devices.

Read `node_filters` and `ranks` top to bottom; nothing else decides. Everything is integer arithmetic on a snapshot, so
the same snapshot and request always give the same answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain import checks, shapes
from millpond_scheduler.domain.columns import BoolArray, CodeArray, IntArray
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.fits import STEP_BITS, ShapeFilters
from millpond_scheduler.domain.fragmentation import PackingTable
from millpond_scheduler.domain.requests import DeviceDemand, RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, Reason
from millpond_scheduler.domain.views import RowView

BLOCKED = np.iinfo(np.int64).max
"""The score of a node that fails a filter."""

NodeCheck: TypeAlias = Callable[[RowView], BoolArray | bool]
Measure: TypeAlias = Callable[[RowView], IntArray | None]  # None = 0 on every row


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator may turn.

    `hold_after_seconds`: a task (or gang) that capacity has blocked for so long gets nodes kept free of younger ones,
    but for those that end before it can start, so that a stream of small tasks cannot pass a large one for ever.
    `hold_seconds`: where no time limit tells the start, the nodes are everybody's again after so long without one, for
    `hold_after_seconds`; so nothing that cannot start holds up the others for ever.
    `evictions_per_hour`: how often a task (with its gang) is stopped for others at most; 0 = as often as it happens.
    `distance`: how hardware is compared with what a task needs.
    """

    hold_after_seconds: int = 600
    hold_seconds: int = 3600
    distance: DistanceRules = field(default_factory=DistanceRules)
    evictions_per_hour: int = 3

    def is_holding(self, waited_us: int) -> bool:
        """Whether nodes are kept free for a task that has waited so long; turns with the age alone."""
        seconds = max(waited_us, 0) // 1_000_000
        return seconds % (self.hold_after_seconds + self.hold_seconds) >= self.hold_after_seconds


def filters() -> tuple[Sequence[tuple[Reason, NodeCheck]], ShapeFilters, Sequence[tuple[Reason, NodeCheck]]]:
    """Every filter in the order in which a node meets them; a node is counted under the first that it fails.

    The middle part looks at hardware alone and is asked once per shape, not once per node.
    """
    whether_open: Sequence[tuple[Reason, NodeCheck]] = (
        (Reason.WRONG_POOL, checks.is_in_pool),  # first: every later count speaks of the pool's own nodes
        (Reason.DEDICATED_TO_OTHERS, checks.is_open_to_tenant),  # it became another tenant's: its nodes are no news
        (Reason.NOT_SCHEDULABLE, checks.is_ready),  # what a silent node last said of itself is not worth comparing
        (Reason.CORDONED, checks.is_open),  # before the hardware: someone's decision, not a property of the request
        (
            Reason.LABEL_MISMATCH,
            checks.has_labels,
        ),  # the owner chose these nodes; the others' hardware is no news to him
        (Reason.AFFINITY_MISMATCH, checks.has_affinity),  # the same, chosen by several values
        (Reason.TOPOLOGY_UNKNOWN, checks.is_known_to_stand),  # a rule on places means nothing there
    )
    whether_fitting: ShapeFilters = (
        (Reason.NOT_SIMULATED, shapes.acts_it_out),  # a real node would really run it: nothing else matters then
        (Reason.TAINT, shapes.tolerates_taints),  # the operator shut these nodes to this job, whatever they have
        (Reason.WRONG_ARCHITECTURE, shapes.has_architecture),  # nothing on another instruction set can run
        (Reason.NO_CONTAINER_RUNTIME, shapes.has_runtime),  # the node cannot start it at all
        (Reason.NO_MATCHING_DEVICE, shapes.matches_device),  # then device by device: the rest asks only matching ones
        (Reason.WRONG_DEVICE_MODE, shapes.is_in_mode),  # the right device, given out otherwise: an operator's decision
        (Reason.INCOMPATIBLE_RUNTIME, shapes.speaks_runtime),  # the coarsest software difference
        (Reason.INCOMPATIBLE_VERSION, shapes.satisfies_versions),  # the right runtime in a wrong version
        (Reason.UNKNOWN_ECOSYSTEM, shapes.knows_software),  # after the certain contradictions: this may yet be told
        (Reason.MISSING_ATTRIBUTE, shapes.reports_attributes),  # the same for numbers
        (Reason.ATTRIBUTE_TOO_LOW, shapes.reaches_minima),  # last of the hardware: everything is known and too small
    )
    whether_free: Sequence[tuple[Reason, NodeCheck]] = (
        (Reason.NOT_ENOUGH_CPU, checks.has_cpu),  # from here on only what is free now counts, cheapest to compare first
        (Reason.NOT_ENOUGH_MEMORY, checks.has_memory),
        (Reason.NOT_ENOUGH_DEVICES, checks.has_device_sum),  # too little even in sum: the node is simply full
        (Reason.NO_LEGAL_START, checks.has_legal_start),  # the same for partitions, which may not begin everywhere
        (Reason.LARGEST_FREE_BLOCK_TOO_SMALL, checks.has_device_block),  # enough in sum: fragmentation is what blocks
        (Reason.DEVICE_SHARED_WITH_OTHER_TENANT, checks.has_own_device),  # room, but beside another tenant's slices
        (Reason.NO_ISOLATION, checks.is_isolated),  # last: it blocks only a node that has everything else
        # Then what depends on where other tasks stand, a mask over rows: `apart.py`, `grounds.py`, `holds.py`.
    )
    return whether_open, whether_fitting, whether_free


@dataclass(frozen=True, slots=True)
class Rank:
    """One comparison of values from 0 on: the smaller goes first. `bits` is its width; larger count as the largest.

    `shown` is what people are told of it, where that differs from what is compared.
    """

    name: str
    bits: int
    measure: Measure
    shown: Measure | None = None


def ranks() -> tuple[Rank, ...]:
    """Nearest hardware, then least fragmentation, comparison by comparison.

    Equal nodes after the last comparison: the oldest node id first, so that no order of rows or dictionaries matters.
    """
    return (
        *_ranks_by_hardware(),
        # What is then free and of no use to the tasks that usually come, and what is used up that is scarce. In quanta,
        # because smaller differences are noise that would spread tasks over all nodes.
        Rank("fragmentation", 24, checks.quanta_added, shown=checks.fragmentation_added),
        # CPU and devices left in the same proportion: what is left of one without the other is of little use. Only in
        # tenths: beyond that the oldest nodes are filled first.
        Rank("imbalance", 4, checks.imbalance_left),
    )


def ranks_by_fit() -> tuple[Rank, ...]:
    """The same where nothing is known of what usually comes: what is left over should be as small as possible."""
    # A slice goes where it leaves the smallest remainder: remainders are what nobody can use later.
    return _ranks_by(Rank("tightest_device", 10, checks.room_on_device))


def ranks_of_partitions() -> tuple[Rank, ...]:
    """The same for a hardware partition: what else could be made of its device should stay as much as possible."""
    return _ranks_by(Rank("partitions_lost", 10, checks.partitions_lost))


def _ranks_by(remainder: Rank) -> tuple[Rank, ...]:
    return (
        *_ranks_by_hardware(),
        remainder,
        # The node with fewest idle devices: whole nodes stay whole for tasks of many devices.
        Rank("fewest_free_devices", 16, checks.free_device_milli),
        # Of equally full nodes the one with least CPU, then memory, to spare.
        Rank("least_cpu_left", 21, checks.spare_cpu),
        Rank("least_memory_left", 8, checks.spare_memory),
    )


def _ranks_by_hardware() -> tuple[Rank, ...]:
    return (
        # A task without devices beside idle devices would strand them without CPU.
        Rank("avoids_devices", 1, checks.has_unneeded_devices),
        # Compatible is what passed; of it the nearest to the need, in steps, so that packing decides within one.
        Rank("steps_away", STEP_BITS, checks.steps_away),
    )


OPEN_FILTERS, SHAPE_FILTERS, FREE_FILTERS = filters()
RANKS = ranks()
RANKS_BY_FIT = ranks_by_fit()
RANKS_OF_PARTITIONS = ranks_of_partitions()


def judge(view: RowView) -> CodeArray:
    """For each row the code of the first filter that it fails; 0 = it may take the task."""
    codes = judge_open(view)
    for reason, passes in reversed(OPEN_FILTERS):
        _overwrite(codes, passes(view), CODES[reason])
    return codes


def judge_open(view: RowView) -> CodeArray:
    """The same as if every node were in the pool, ready, uncordoned and labelled as asked."""
    shape_codes = view.fits.codes[view.shape]
    codes: CodeArray = np.zeros(len(shape_codes), dtype=np.uint8)
    # From the last filter to the first, each writing over the later ones, so that the first failure remains.
    for reason, passes in reversed(FREE_FILTERS):
        _overwrite(codes, passes(view), CODES[reason])
    np.copyto(codes, shape_codes, where=shape_codes != 0)
    return codes


def depends_on_tenant(snapshot: Snapshot, request: RequestClass) -> bool:
    """Whether any filter or rank looks at whose the request is; else all tenants' equal requests rank nodes alike."""
    rules, demand = snapshot.rules_of(request.pool), request.devices
    return (
        rules.dedicated_to is not None  # is_open_to_tenant
        # has_own_device
        or (demand is not None and not demand.is_whole and rules.device_sharing is not DeviceSharing.ANY)
        # is_isolated
        or (not rules.allow_shared_users and snapshot.has_unisolated(request.pool))
    )


def ranks_of(demand: DeviceDemand | None, table: PackingTable | None) -> tuple[Rank, ...]:
    """The comparisons that decide for a request, where something usually comes or nothing does."""
    if demand is not None and demand.profile is not None:
        return RANKS_OF_PARTITIONS
    return RANKS_BY_FIT if table is None else RANKS


def score(view: RowView, codes: CodeArray) -> IntArray:
    """For each row one integer that compares like the list of ranks, smallest first; BLOCKED where it may not go."""
    total: IntArray = np.zeros(len(codes), dtype=np.int64)
    for rank in ranks_of(view.demand, view.table):
        value = rank.measure(view)
        total <<= rank.bits
        if value is not None:
            total |= np.minimum(value, (1 << rank.bits) - 1)
    np.copyto(total, BLOCKED, where=codes != 0)
    return total


def pick_slots(view: RowView) -> list[int]:
    """The device slots of a one-row view that the task takes.

    A slice takes the device on which it spoils least, or where that is not known leaves least, and so does a partition;
    whole devices are taken from the lowest slot on. All of them are of one flavor: of several with enough, the nearest,
    then that with most.
    """
    demand = view.demand
    if demand is None:
        return []
    if demand.is_whole:
        return [int(slot) for slot in np.flatnonzero(view.taken_whole(demand.count)[0])]
    if demand.profile is not None:
        return [int(view.partitions_lost()[0].argmin())]
    return [int(view.room_left()[0].argmin() if view.table is None else view.spoil().slot[0])]


def describe_ranks(view: RowView) -> list[tuple[str, int]]:
    """What each comparison said of a one-row view; a comparison that does not apply is left out."""
    values = ((rank.name, (rank.shown or rank.measure)(view)) for rank in ranks_of(view.demand, view.table))
    return [(name, int(value[0])) for name, value in values if value is not None]


def lowest(snapshot: Snapshot, rows: IntArray) -> int:
    """The row of the oldest node id among the rows."""
    if len(rows) > 1:
        ties = snapshot.columns.tie[rows]
        rows = rows[ties == ties.min()]
    return int(rows[snapshot.columns.tie_rest[rows].argmin()])


def _overwrite(codes: CodeArray, passed: BoolArray | bool, code: int) -> None:
    if passed is not True:
        np.copyto(codes, code, where=~np.asarray(passed))


assert all(sum(rank.bits for rank in each) < 63 for each in (RANKS, RANKS_BY_FIT, RANKS_OF_PARTITIONS)), (
    "a score is one positive int64"
)
assert WHOLE_DEVICE_MILLI < 1 << 10, "a remainder of a device fits its rank"
