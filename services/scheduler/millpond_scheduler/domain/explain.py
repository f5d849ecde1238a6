"""Why a task waits, for people: one dominant reason, a count per reason, its limits, and what would let it start."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI, plain_decimal
from millpond_scheduler.domain import checks, policy, shapes
from millpond_scheduler.domain.admission import Ledger
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.capacity import sum_free
from millpond_scheduler.domain.columns import ABSENT
from millpond_scheduler.domain.cycle import VirtualPools
from millpond_scheduler.domain.defragmentation import measure_fragmentation
from millpond_scheduler.domain.gangs import count_fitting
from millpond_scheduler.domain.growth import GrowthLimit, LargestSize, find_reached
from millpond_scheduler.domain.lack import find_nearest, missing_devices
from millpond_scheduler.domain.partitions import find_largest
from millpond_scheduler.domain.plans import AdmissionLine, GangRoom, Rejection, Search, Spared
from millpond_scheduler.domain.refusals import decide_rejection, list_lines
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.topology import in_words
from millpond_scheduler.domain.unblocking import suggest_by_place
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, CODES, Reason, Unblock, describe_reason
from millpond_scheduler.domain.views import RowView

_SEARCHES = {
    None: "",
    Search.IMPOSSIBLE: "; an exact search proved that there is no way now",
    Search.UNDECIDED: "; an exact search found no way in its time",
}
_LIMITS = frozenset({Reason.LIMIT_REACHED, Reason.GUARANTEE_OF_OTHERS})
_SOFTWARE = frozenset({Reason.INCOMPATIBLE_RUNTIME, Reason.INCOMPATIBLE_VERSION, Reason.UNKNOWN_ECOSYSTEM})


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one task waits. `counts` sum to `nodes`, the nodes of its pool.

    `largest_free_devices` = free matching whole devices on the best node that is open, `largest_free_milli` = the
    largest free share of one matching device; None when the task asks for no device. `could_ever_fit`: some node that
    takes work could hold the task if nothing ran on it. `attributes` = nodes per software attribute that fails.
    `starts_us` = when it can start by the time limits of what runs. `fragmentation_permille` = what it cannot use of
    what is free of its devices. `largest_free_profile` = the largest partition that one matching device has a legal
    start for; None when the task asks for no partition.
    """

    dominant: Reason
    message: str
    position: int
    counts: Mapping[Reason, int]
    nodes: int
    admission: tuple[AdmissionLine, ...]
    largest_free_devices: int | None
    largest_free_milli: int | None
    could_ever_fit: bool
    attributes: Mapping[str, int]
    would_unblock: tuple[Unblock, ...]
    gang: GangRoom | None = None
    starts_us: int | None = None
    fragmentation_permille: int = 0
    largest_free_profile: str | None = None


def explain(
    snapshot: Snapshot,
    task: QueuedTask,
    virtual_pools: VirtualPools,
    position: int = 1,
    rejection: Rejection | None = None,
    cache: CandidateCache | None = None,
    *,
    is_trial: bool = False,
    growth: Iterable[GrowthLimit] = (),
) -> Explanation:
    """Explain one waiting task from the snapshot as it is.

    Args:
        position: the task's place in the queue of its virtual pool.
        rejection: what the last cycle said of it, which alone knows of earmarks and of the batch's order.
        cache: the remembered scores of this snapshot, if the caller keeps them.
        is_trial: whether the rejection is of a dry run, of which nothing is carried out.
        growth: how large pools may grow.
    """
    cache = cache or CandidateCache(snapshot)
    candidates = cache.get(task.request if rejection is None or rejection.request is None else rejection.request)
    balance = Ledger(virtual_pools, lambda pool: sum_free(snapshot, pool)).find_balance(task.virtual_pool)
    rejection = rejection or decide_rejection(cache, balance, task.request)
    size = 1 if task.gang is None else task.gang.size
    alike = size if rejection.gang is None or rejection.gang.group is None else rejection.gang.group_tasks
    lines = () if balance is None else list_lines(balance, candidates, alike)
    nodes = sum(rejection.counts.values())
    nearest = find_nearest(snapshot, candidates)
    devices, milli = largest_free(snapshot, candidates)
    dominant = rejection.reason
    if nodes and nearest is None and dominant in _LIMITS:
        dominant = _hardest(rejection.counts)  # no limit could help: the hardware is the reason
    message = describe_reason(dominant, rejection.counts.get(dominant, 0), nodes, is_trial=is_trial)
    if nodes and nearest is None and dominant not in _LIMITS:
        message += "; even with nothing running no node that takes work could hold it"
    reached = find_reached(snapshot, candidates, growth) if dominant in CAPACITY_REASONS else []
    message += "".join(f"; {_largest_size(size)}" for size in reached)
    if rejection.gang is not None:
        message = _of_gang(rejection.gang, size, alike, message)
    return Explanation(
        dominant=dominant,
        message=message,
        position=position,
        counts=rejection.counts,
        nodes=nodes,
        admission=lines,
        largest_free_devices=devices,
        largest_free_milli=milli,
        could_ever_fit=nearest is not None,
        attributes=_count_attributes(snapshot, candidates),
        would_unblock=(
            *suggest_by_place(task, candidates.request, rejection),
            *_suggest(snapshot, candidates, rejection, _that_help(snapshot, candidates, lines, alike), nearest),
            *map(_grow, reached),
        ),
        gang=rejection.gang,
        starts_us=rejection.starts_us,
        fragmentation_permille=measure_fragmentation(snapshot, candidates),
        largest_free_profile=largest_free_profile(snapshot, candidates),
    )


def _of_gang(gang: GangRoom, size: int, alike: int, why: str) -> str:
    """How much of a gang finds room, before the reason of the next task of it."""
    where = "" if gang.group is None else f" ({gang.group} has room for {gang.group_fitting} of {alike})"
    packed = "" if gang.level is None else f" in {in_words(gang.level)} {gang.domain}"
    room = f"room for {gang.fitting} of the gang's {size} tasks{where}{packed}, which start together"
    return f"{room}: {why}{_SEARCHES[gang.search]}"


def _largest_size(size: LargestSize) -> str:
    return f"the pool is at its largest size, {size.nodes} of {size.limit.max_nodes} nodes with {size.limit.flavor}"


def _grow(size: LargestSize) -> Unblock:
    wanted = f"raise max_nodes of scaling policy {size.limit.policy}, which an operator can"
    return Unblock(wanted, f"the pool may then grow beyond {size.limit.max_nodes} nodes with {size.limit.flavor}")


def _hardest(counts: Mapping[Reason, int]) -> Reason:
    """The reason that most nodes are unfit for; of equals the one that is checked first."""
    return max(sorted(counts), key=lambda reason: counts[reason])


def largest_free(snapshot: Snapshot, candidates: Candidates) -> tuple[int | None, int | None]:
    """Free matching whole devices on the best open node, and the largest free share of one; None without devices."""
    if candidates.request.devices is None:
        return None, None
    view = _view_open(snapshot, candidates)
    free = np.where(view.eligible, view.device_milli_free, 0)
    most = int(free.max(initial=0))
    if candidates.request.devices.profile is not None:
        return None, most
    return int(view.count_devices(free == WHOLE_DEVICE_MILLI).max(initial=0)), most


def largest_free_profile(snapshot: Snapshot, candidates: Candidates) -> str | None:
    """The largest partition that a matching device of an open node has a legal start for; None without any."""
    if candidates.request.devices is None or candidates.request.devices.profile is None:
        return None
    view, tables = _view_open(snapshot, candidates), candidates.fits.partitions
    held = np.stack((candidates.fits.slot_partition[view.shape], view.device_slots()), axis=-1)[view.eligible]
    found = [find_largest(tables.geometry_of(row), taken) for row, taken in np.unique(held, axis=0).tolist()]
    largest = max(
        (one for one in found if one is not None),
        key=lambda one: (one.slices, one.compute_slices, one.name),
        default=None,
    )
    return None if largest is None else largest.name


def _view_open(snapshot: Snapshot, candidates: Candidates) -> RowView:
    """The nodes of the request's pool that take work."""
    columns = snapshot.columns
    rows = np.flatnonzero((columns.ready & ~columns.cordoned)[: columns.rows])
    rows = rows[columns.pool[rows] == snapshot.pools.find(candidates.request.pool)]
    return RowView(snapshot, candidates.fits, rows)


def _count_attributes(snapshot: Snapshot, candidates: Candidates) -> dict[str, int]:
    """How many nodes fail by which software attribute, asked once per shape."""
    columns, codes, request = snapshot.columns, candidates.codes, candidates.request
    failed = np.isin(codes, [CODES[reason] for reason in _SOFTWARE])
    counts = np.bincount(columns.shape[: columns.rows][failed], minlength=len(snapshot.shapes.values))
    found: dict[str, int] = {}
    for index in np.flatnonzero(counts):
        shape = snapshot.shapes.values[index]
        matching = [device for device in shape.devices if shapes.matches_device(shape.node, device, request)]
        _, attribute = shapes.check_software(shape.node, matching[0] if matching else None, request)
        if attribute is not None:
            found[attribute] = found.get(attribute, 0) + int(counts[index])
    return found


def _that_help(
    snapshot: Snapshot, candidates: Candidates, lines: Sequence[AdmissionLine], tasks: int
) -> list[AdmissionLine]:
    """Limits that are short: of flavors only those of which the pool could hold so many tasks if nothing ran.

    Where no flavor could, those that could hold one, else all.
    """
    short = [line for line in lines if line.missing]
    view, rows = candidates.view_empty()
    shape_of_row = snapshot.columns.shape[rows]
    by_shape = np.bincount(shape_of_row, weights=count_fitting(view)[rows], minlength=len(snapshot.shapes.values))
    room: dict[str, int] = {}
    for shape in np.flatnonzero(by_shape).tolist():
        devices = snapshot.shapes.values[shape].devices
        for flavor in {devices[slot].flavor for slot in np.flatnonzero(candidates.fits.slots[shape]).tolist()}:
            room[flavor] = room.get(flavor, 0) + int(by_shape[shape])
    helpful = {flavor for flavor, most in room.items() if most >= tasks} or room.keys()
    return [line for line in short if line.flavor is None or not helpful or line.flavor in helpful]


def _suggest(
    snapshot: Snapshot,
    candidates: Candidates,
    rejection: Rejection,
    lines: Sequence[AdmissionLine],
    nearest: int | None,
) -> list[Unblock]:
    if rejection.reason in (Reason.GANG_STOPPING, Reason.RECLAIMING, Reason.PREEMPTING, Reason.MOVING):
        return []
    limits = [_raise_limit(line) for line in lines]
    limits += [_wait_for(why, tasks) for why, tasks in sorted(rejection.spared.items())]
    opened = _open_nodes(snapshot, candidates)
    if nearest is None and not opened:
        larger = Unblock(
            "add a node that meets the request, or ask for less", "no node of the pool could hold the task"
        )
        return [larger, *limits]
    if rejection.gang is not None:
        return limits + opened + _make_room(snapshot, candidates, rejection.gang)
    freed = (
        [] if nearest is None or rejection.counts.get(Reason.PLACEABLE) else _free_node(snapshot, candidates, nearest)
    )
    return limits + opened + freed


def _wait_for(why: Spared, tasks: int) -> Unblock:
    """What lets a task stop that is spared now."""
    them = f"{tasks} task{'s' if tasks > 1 else ''} that could be stopped for it"
    if why is Spared.MINIMUM_RUNTIME:
        return Unblock(
            f"wait: {them} have not run for the minimum time of their virtual pool", "then they may be stopped"
        )
    if why is Spared.STOPPED_TOO_OFTEN:
        return Unblock(f"wait an hour, or end {them}", "they were stopped for others as often as one hour allows")
    return Unblock(
        f"wait an hour, or end {them} by hand", "stopping them for this task again would be a loop: it was done before"
    )


def _make_room(snapshot: Snapshot, candidates: Candidates, gang: GangRoom) -> list[Unblock]:
    """What a gang lacks: room for the rest of its tasks (of the group that is stuck), or a larger pool."""
    view, rows = candidates.view_empty()
    most = int(count_fitting(view)[rows].sum())
    alike, fitting = (gang.tasks, gang.fitting) if gang.group is None else (gang.group_tasks, gang.group_fitting)
    where = "on the pool's nodes"
    if gang.level is not None:
        level, where = in_words(gang.level), f"in {in_words(gang.level)} {gang.domain}"
        domains, empty = snapshot.domains_of(gang.level, rows), count_fitting(view)[rows]
        known = domains != ABSENT
        largest = int(np.bincount(domains[known], weights=empty[known], minlength=1).max())
        if largest < alike:
            return [
                Unblock(
                    f"pack by a wider level than {level}, or ask for a smaller gang",
                    f"with nothing running the largest {level} could hold {largest} of {alike} such tasks",
                )
            ]
    if most < alike:
        return [
            Unblock(
                f"add nodes for {alike - most} more such tasks, or ask for a smaller gang",
                f"with nothing running the pool could hold {most} of its {alike} tasks",
            )
        ]
    missing = alike - fitting
    if not missing:
        return []
    return [
        Unblock(
            f"release room for {missing} more such task{'s' if missing > 1 else ''} {where}",
            f"all {gang.tasks} tasks of the gang then start together",
        )
    ]


def _raise_limit(line: AdmissionLine) -> Unblock:
    name = line.resource if line.flavor is None else f"{line.resource}/{line.flavor}"
    missing = amount_in_words(line.resource, line.missing)
    if line.used + line.requested <= line.limit:
        return Unblock(
            f"raise the guarantee of {name} by {missing}, or wait for others to end work",
            "the virtual pool then no longer borrows what is guaranteed to others",
        )
    wanted = amount_in_words(line.resource, line.used + line.requested)
    return Unblock(
        f"raise the limit of {name} by {missing}, or end work of this virtual pool that holds as much",
        f"the limit would be {wanted} instead of {amount_in_words(line.resource, line.limit)}",
    )


def amount_in_words(resource: str, amount: int) -> str:
    """An amount in milli (or MiB of memory) as people say it, exact: `1.5 cores`, `6 GiB`, `2 devices`."""
    if resource == "memory":
        return f"{amount // 1024} GiB" if amount and amount % 1024 == 0 else f"{amount} MiB"
    number = plain_decimal(Decimal(amount).scaleb(-3))
    noun = "core" if resource == "cpu" else "device"
    return f"{number} {noun}" if amount == 1000 else f"{number} {noun}s"


def _open_nodes(snapshot: Snapshot, candidates: Candidates) -> list[Unblock]:
    """The oldest node that would take the task at once if it were uncordoned, or ready."""
    view = RowView(snapshot, candidates.fits, slice(0, snapshot.columns.rows))
    room = (policy.judge_open(view) == 0) & checks.is_chosen(view)
    found = []
    for reason in (Reason.CORDONED, Reason.NOT_SCHEDULABLE):
        rows = np.flatnonzero(room & (candidates.codes == CODES[reason]))
        if len(rows):
            record = snapshot.record_at(policy.lowest(snapshot, rows))
            name = record.name or str(record.id)
            if reason is Reason.CORDONED:
                action = f"uncordon node {name} ({', '.join(sorted(record.cordons))})"
            else:
                action = f"bring node {name} back (it is {record.state})"
            found.append(Unblock(action, f"the task fits there; {len(rows)} such nodes"))
    return found


def _free_node(snapshot: Snapshot, candidates: Candidates, row: int) -> list[Unblock]:
    """What the nearest node lacks."""
    record, columns = snapshot.record_at(row), snapshot.columns
    request, demand = candidates.request, candidates.request.devices
    lack = int(missing_devices(RowView(snapshot, candidates.fits, np.array([row])))[0])
    parts = []
    if lack and demand is not None and demand.is_whole:
        parts.append(f"{lack} device{'s' if lack > 1 else ''}")
    elif lack and demand is not None and demand.profile is not None:
        parts.append(f"slices of one device where a {demand.profile} may begin")
    elif lack:
        parts.append(f"room for the slice on one device ({lack} milli short)")
    if (cpu := request.cpu_milli - int(columns.cpu_free[row])) > 0:
        parts.append(amount_in_words("cpu", cpu))
    if (memory := request.memory_mib - int(columns.memory_free[row])) > 0:
        parts.append(f"{amount_in_words('memory', memory)} of memory")
    if not parts:
        return []
    return [Unblock(f"release {', '.join(parts)} on node {record.name or record.id}", "the task then fits there")]
