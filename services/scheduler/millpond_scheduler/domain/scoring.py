"""The kernels beside the policy's lists: which filters and ranks they know, and what they are given for one request.

The lists of `policy` stay what decides. A filter that the kernels do not know is asked as everywhere else, on the rows
that changed, and takes its place among the others; where there is a rank that they do not know, NumPy scores all.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TypeAlias

import numpy as np

from millpond_contracts.bodies.pools import DeviceSharing
from millpond_scheduler.domain import checks, kernel_layout, policy
from millpond_scheduler.domain.columns import CodeArray, IntArray
from millpond_scheduler.domain.fits import ShapeFits
from millpond_scheduler.domain.fragmentation import PackingTable
from millpond_scheduler.domain.policy import NodeCheck, Rank
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, REASONS, Reason
from millpond_scheduler.domain.views import RowView

KERNEL_NODES = 1_000
"""From so many nodes on the kernels are worth their memory and the seconds of compiling them."""

_FILTERS: Mapping[NodeCheck, int] = {
    checks.is_in_pool: kernel_layout.IN_POOL,
    checks.is_open_to_tenant: kernel_layout.TENANT_OPEN,
    checks.is_ready: kernel_layout.READY,
    checks.is_open: kernel_layout.UNCORDONED,
    checks.has_labels: kernel_layout.LABELS,
    checks.has_cpu: kernel_layout.HAS_CPU,
    checks.has_memory: kernel_layout.HAS_MEMORY,
    checks.has_device_sum: kernel_layout.SUM,
    checks.has_device_block: kernel_layout.BLOCK,
    checks.has_own_device: kernel_layout.OWN,
    checks.is_isolated: kernel_layout.ISOLATED,
}
_MEASURES: Mapping[policy.Measure, int] = {
    checks.has_unneeded_devices: kernel_layout.UNNEEDED,
    checks.steps_away: kernel_layout.STEPS,
    checks.quanta_added: kernel_layout.QUANTA,
    checks.imbalance_left: kernel_layout.IMBALANCE,
    checks.room_on_device: kernel_layout.ROOM_LEFT,
    checks.free_device_milli: kernel_layout.DEVICE_MILLI,
    checks.spare_cpu: kernel_layout.SPARE_CPU,
    checks.spare_memory: kernel_layout.SPARE_MEMORY,
}

# When a filter that the kernels do not know can fail at all, so that others' requests do not wait for it.
_APPLIES: Mapping[NodeCheck, Callable[[RequestClass], bool]] = {
    checks.has_affinity: lambda request: bool(request.affinity),
    checks.is_known_to_stand: lambda request: bool(request.levels),
    checks.has_legal_start: lambda request: request.devices is not None and request.devices.profile is not None,
}


def _always(_: RequestClass) -> bool:
    return True


Kernel: TypeAlias = Callable[..., tuple[int, int]]
"""The function `kernels.refresh`, compiled or as it is."""


def load_kernel() -> Kernel:
    """The compiled kernel; the first call imports numba, and compiles where no earlier process has."""
    compiled = import_module("millpond_scheduler.domain.compiled")
    found: Kernel = compiled.compile_kernel()
    return found


class Numbers:
    """The policy's lists as the kernels read them.

    Attributes:
        filters: (filters, 2) the known ones with the codes of their reasons, in order.
        others: the filters that they do not know.
        order: (codes,) the place of each reason among all filters; that of no reason is behind all.
    """

    def __init__(
        self, open_filters: Sequence[tuple[Reason, NodeCheck]], free_filters: Sequence[tuple[Reason, NodeCheck]]
    ) -> None:
        listed = [*open_filters, None, *free_filters]
        known, self.others = [], list[tuple[Reason, NodeCheck]]()
        shape_codes = [CODES[reason] for reason, _ in policy.SHAPE_FILTERS]
        self.order: IntArray = np.full(len(REASONS), len(listed), dtype=np.int64)
        for place, each in enumerate(listed):
            if each is None:
                known.append((kernel_layout.FITTING, 0))
                self.order[shape_codes] = place
                continue
            reason, check = each
            self.order[CODES[reason]] = place
            if check in _FILTERS:
                known.append((_FILTERS[check], CODES[reason]))
            else:
                self.others.append(each)
        self.filters: IntArray = np.array(known, dtype=np.int64)


NUMBERS = Numbers(policy.OPEN_FILTERS, policy.FREE_FILTERS)
_NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)
_NO_CODES: CodeArray = np.zeros(0, dtype=np.uint8)


@cache
def number_ranks(ranks: tuple[Rank, ...]) -> IntArray | None:
    """(ranks, 2) a list's measures with their widths; None when the kernels do not know one of them."""
    if any(rank.measure not in _MEASURES for rank in ranks):
        return None
    return np.array([(_MEASURES[rank.measure], rank.bits) for rank in ranks], dtype=np.int64)


class Scorer:
    """What the kernel is given for one request; made anew when what it was made of is.

    Attributes:
        kept: the arrays that it writes, in its order.
    """

    def __init__(self, snapshot: Snapshot, fits: ShapeFits, kernel: Kernel, numbers: Numbers = NUMBERS) -> None:
        self.kept: tuple[object, ...] = ()
        self._snapshot = snapshot
        self._fits = fits
        self._kernel = kernel
        self._numbers = numbers
        self._others = [each for each in numbers.others if _APPLIES.get(each[1], _always)(fits.request)]
        self._made_of: tuple[object, ...] = ()
        self._arguments: tuple[object, ...] = ()

    @property
    def knows_all(self) -> bool:
        """Whether the kernels can score the request on the snapshot as it is."""
        return self._number_ranks() is not None and self._snapshot.columns.width <= kernel_layout.MAX_WIDTH

    def prepare(self) -> None:
        """Takes what changed beside the holdings of nodes."""
        snapshot, fits = self._snapshot, self._fits
        table, rules = snapshot.table_of(fits.request.pool), snapshot.rules_of(fits.request.pool)
        made_of = (snapshot.columns.blocks, fits.codes, fits.label_matches, table, rules)
        if len(self._made_of) != len(made_of) or any(a is not b for a, b in zip(self._made_of, made_of, strict=True)):
            self._made_of, self._arguments = made_of, self._list_arguments(table)

    def refresh(self, since: int) -> tuple[int, int]:
        """Judges and scores the rows that changed after a tick; the row that then goes first, and its devices as bits.

        The row is -1 when none may take the task.
        """
        rows, tick, others = self._snapshot.changes.list_changes(since), since + 1, _NO_CODES
        if rows is None or self._others:
            rows, tick = self._snapshot.changes.list_rows(since), -1
            others = self._ask_others(rows)
        return self._kernel(rows, tick, -1, others, *self._arguments, *self.kept)

    def pick(self, row: int) -> int:
        """The devices that the task takes on a row that may take it, as bits."""
        return self._kernel(_NO_ROWS, -1, row, _NO_CODES, *self._arguments, *self.kept)[1]

    def _ask_others(self, rows: IntArray) -> CodeArray:
        """The first of the filters that the kernel does not know that each row fails; empty where all apply to none."""
        if not self._others:
            return _NO_CODES
        view, codes = RowView(self._snapshot, self._fits, rows), np.zeros(len(rows), dtype=np.uint8)
        for reason, passes in reversed(self._others):
            codes[~np.broadcast_to(np.asarray(passes(view)), codes.shape)] = CODES[reason]
        return codes

    def _list_arguments(self, table: PackingTable | None) -> tuple[object, ...]:
        fits, none = self._fits, np.zeros(1, dtype=np.int64)
        hardware = (
            fits.codes,
            fits.steps,
            fits.slots,
            fits.slot_steps,
            fits.label_matches,
            np.array(fits.mixed_flavors, dtype=np.int64),
        )
        packing = (none, none, none.reshape(1, 1, 1), none.reshape(1, 1, 1), none, none)
        if table is not None:
            packing = (table.cpu_levels, table.share_of, table.single, table.several, table.core, table.device)
        columns, numbers = self._snapshot.columns, self._numbers
        lists = (self._ask(table), numbers.filters, self._number_ranks())
        node = np.zeros(kernel_layout.NODE_WIDTH, dtype=np.int64)
        here = np.zeros((kernel_layout.HERE_WIDTH, columns.width), dtype=np.int64)
        return (numbers.order, columns.blocks, hardware, packing, *lists, node, here)

    def _number_ranks(self) -> IntArray | None:
        request = self._fits.request
        return number_ranks(policy.ranks_of(request.devices, self._snapshot.table_of(request.pool)))

    def _ask(self, table: PackingTable | None) -> IntArray:
        request, rules = self._fits.request, self._snapshot.rules_of(self._fits.request.pool)
        demand = request.devices
        ask: IntArray = np.zeros(kernel_layout.ASK_WIDTH, dtype=np.int64)
        ask[kernel_layout.CPU], ask[kernel_layout.MEMORY] = request.cpu_milli, request.memory_mib
        ask[kernel_layout.POOL], ask[kernel_layout.TENANT] = self._fits.pool, self._fits.tenant
        if demand is not None:
            ask[kernel_layout.COUNT] = demand.count
            ask[kernel_layout.MILLI] = -1 if demand.milli is None else demand.milli
            ask[kernel_layout.DEVICE_MEMORY] = -1 if demand.memory_mib is None else demand.memory_mib
        is_slice = demand is not None and not demand.is_whole
        ask[kernel_layout.DEVICE_COLUMNS] = (
            kernel_layout.DEVICE_COLUMNS_OF_SLICES if is_slice else kernel_layout.DEVICE_COLUMNS_OF_ALL
        )
        ask[kernel_layout.IS_OPEN] = rules.dedicated_to in (None, request.tenant)
        ask[kernel_layout.HAS_LABELS], ask[kernel_layout.HAS_STEPS] = bool(request.labels), self._fits.has_steps
        ask[kernel_layout.SHARES_DEVICES] = rules.device_sharing is DeviceSharing.ANY
        ask[kernel_layout.SHARES_USERS] = rules.allow_shared_users
        if table is not None:
            ask[kernel_layout.HAS_TABLE] = 1
            ask[kernel_layout.MOST], ask[kernel_layout.WEIGHT], ask[kernel_layout.QUANTUM] = (
                table.most,
                table.weight,
                table.quantum,
            )
        return ask
