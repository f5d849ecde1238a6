"""One batch of decisions: the queue and the snapshot go in, a plan comes out.

The steps: 1 order the queue; 2 admit against limits; 3 choose a node; 4 take it on the snapshot; 5 say why the others
wait; 6 keep a node free for whoever has waited too long.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import NodeId, PoolId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import CPU, MEMORY, Balance, Ledger, VirtualPoolState, device
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.capacity import sum_free
from millpond_scheduler.domain.earmarks import find_nearest
from millpond_scheduler.domain.plans import AdmissionLine, Holding, Placement, Plan, Rejection
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, Reason, decide_dominant

VirtualPools = Mapping[VirtualPoolId, VirtualPoolState]


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether the limits let a task in, and if only with some flavors, the request narrowed to them."""

    request: RequestClass
    reason: Reason | None = None
    lines: tuple[AdmissionLine, ...] = ()


@dataclass(slots=True)
class _Batch:
    snapshot: Snapshot
    cache: CandidateCache
    ledger: Ledger
    policy: Policy
    now_us: int
    placements: list[Placement] = field(default_factory=list)
    rejections: dict[TaskId, Rejection] = field(default_factory=dict)
    blocked: dict[tuple[VirtualPoolId, RequestClass], Rejection] = field(default_factory=dict)
    earmarks: dict[TaskId, NodeId] = field(default_factory=dict)
    kept_rows: set[int] = field(default_factory=set)
    kept_lines: set[tuple[PoolId, str | None]] = field(default_factory=set)


def plan_batch(
    snapshot: Snapshot,
    queue: Iterable[QueuedTask],
    virtual_pools: VirtualPools,
    now_us: int,
    policy: Policy | None = None,
    max_tasks: int = 500,
    cache: CandidateCache | None = None,
) -> Plan:
    """Decide where waiting tasks go, at most `max_tasks` of them; the others carry a reason.

    The placements are made on the snapshot, so that the next batch can be planned while this one is committed:
    `snapshot.keep()` after the commit, `snapshot.undo_to(plan.mark)` after a refused one.

    Args:
        queue: the waiting tasks in any order.
        virtual_pools: all virtual pools of the shard with what they hold now.
        now_us: the instant of the decision in microseconds, the clock of `QueuedTask.queued_at_us`.
        cache: the remembered scores of this snapshot; kept by the caller between batches.
    """
    cache = cache or CandidateCache(snapshot)
    ledger = Ledger(virtual_pools, lambda pool: sum_free(snapshot, pool))
    batch = _Batch(snapshot, cache, ledger, policy or Policy(), now_us)
    mark, examined = snapshot.mark(), 0
    # 1. Order: priority, then age, then id.
    for task in order_queue(queue, virtual_pools):
        if len(batch.placements) == max_tasks:
            break
        if snapshot.find_holding(task.id) is not None:
            continue  # read from the queue before its placement was committed: never twice at a time
        examined += 1
        # A batch only takes: what was blocked once stays blocked for every equal task behind it.
        known = batch.blocked.get((task.virtual_pool, task.request))
        rejection = known or _decide(batch, task)
        if rejection is not None:
            batch.rejections[task.id] = rejection
            batch.blocked[task.virtual_pool, task.request] = rejection
    return Plan(tuple(batch.placements), batch.rejections, batch.earmarks, examined, mark)


def order_queue(queue: Iterable[QueuedTask], virtual_pools: VirtualPools) -> list[QueuedTask]:
    """The tasks in the order of decision. In a first-in-first-out virtual pool every task has priority 0."""
    fifo = {key for key, state in virtual_pools.items() if state.policy is QueuePolicy.FIFO}
    if not fifo:
        return sorted(queue, key=lambda task: task.order_key)
    return sorted(queue, key=lambda task: (0, *task.order_key[1:]) if task.virtual_pool in fifo else task.order_key)


def find_positions(ordered: Iterable[QueuedTask]) -> dict[TaskId, int]:
    """Each task's place in the queue of its virtual pool, 1 = next; the tasks come in the order of decision."""
    counts: dict[VirtualPoolId, int] = {}
    positions: dict[TaskId, int] = {}
    for task in ordered:
        counts[task.virtual_pool] = positions[task.id] = counts.get(task.virtual_pool, 0) + 1
    return positions


def admit(balance: Balance | None, candidates: Candidates) -> Admission:
    """Ask the limits on CPU, memory and every flavor that the hardware would allow.

    One flavor with room is enough; the request is then narrowed to those that have it.
    """
    request = candidates.request
    if balance is None:
        return Admission(request, Reason.NO_VIRTUAL_POOL)
    reason = balance.find_block({CPU: request.cpu_milli, MEMORY: request.memory_mib})
    demand = request.devices
    if reason is None and demand is not None:
        blocks = {name: balance.find_block({device(name): candidates.milli_of(name)}) for name in candidates.flavors}
        left = frozenset(name for name, block in blocks.items() if block is None)
        if blocks and not left:
            reason = Reason.LIMIT_REACHED if Reason.LIMIT_REACHED in blocks.values() else Reason.GUARANTEE_OF_OTHERS
        elif len(left) < len(blocks):
            request = replace(request, devices=replace(demand, flavors=left))
    if reason is None:
        return Admission(request)
    return Admission(request, reason, list_lines(balance, candidates))


def list_lines(balance: Balance, candidates: Candidates) -> tuple[AdmissionLine, ...]:
    """Every limit that the request meets: CPU, memory and each flavor that the hardware would allow."""
    request = candidates.request
    lines = [balance.describe(CPU, request.cpu_milli), balance.describe(MEMORY, request.memory_mib)]
    if request.devices is not None:
        lines += [balance.describe(device(name), candidates.milli_of(name)) for name in candidates.flavors]
    return tuple(lines)


def decide_rejection(
    cache: CandidateCache,
    balance: Balance | None,
    request: RequestClass,
    kept_rows: Collection[int] = (),
) -> Rejection:
    """Say why a request does not start, with one count per node of its pool.

    A limit comes first where it alone stands between the task and a node with room.
    """
    candidates = cache.get(request)
    admission = admit(balance, candidates)
    counts = candidates.count_reasons(kept_rows)
    if balance is None or admission.reason is not None:
        return Rejection(admission.reason or Reason.NO_VIRTUAL_POOL, counts, admission.lines)
    lines: tuple[AdmissionLine, ...] = ()
    if admission.request is not request:
        lines = list_lines(balance, candidates)
        if Reason.PLACEABLE in counts and cache.get(admission.request).find_best(kept_rows) is None:
            return Rejection(Reason.LIMIT_REACHED, counts, lines)
    reason = decide_dominant(counts, unavailable_would_match=candidates.has_unavailable_match())
    return Rejection(reason, counts, lines)


def _decide(batch: _Batch, task: QueuedTask) -> Rejection | None:
    balance = batch.ledger.find_balance(task.virtual_pool)
    # 2. Admission: which flavors do the limits leave?
    admission = admit(balance, batch.cache.get(task.request))
    if balance is not None and admission.reason is None:
        candidates = batch.cache.get(admission.request)
        # 3. The best node that passes every filter.
        row = candidates.find_best(batch.kept_rows)
        if row is not None:
            _place(batch, task, balance, candidates, row)
            return None
    # 5. Say why.
    rejection = decide_rejection(batch.cache, balance, task.request, batch.kept_rows)
    if rejection.reason in CAPACITY_REASONS:
        _keep_free(batch, task, batch.cache.get(admission.request))
    return rejection


def _place(batch: _Batch, task: QueuedTask, balance: Balance, candidates: Candidates, row: int) -> None:
    # 4. Take it on the snapshot and charge the limits, so that the next task of this batch sees both.
    snapshot, request = batch.snapshot, candidates.request
    node = snapshot.record_at(row)
    picks = candidates.pick_devices(row)
    holding = Holding(task.id, node.id, request.tenant, request.cpu_milli, request.memory_mib, picks)
    snapshot.place(holding)
    demand = {CPU: request.cpu_milli, MEMORY: request.memory_mib}
    flavor = snapshot.find_flavor(picks[0].device) if picks else None
    if flavor is not None:
        demand[device(flavor)] = holding.device_milli
    balance.charge(demand)
    batch.placements.append(Placement(holding, task.virtual_pool, flavor, node.incarnation))


def _keep_free(batch: _Batch, task: QueuedTask, candidates: Candidates) -> None:
    # 6. Whom capacity alone has blocked for too long gets a node kept free, one per pool and flavor at a time.
    if batch.now_us - task.queued_at_us < batch.policy.hold_after_seconds * 1_000_000:
        return
    flavors: set[str | None] = set(candidates.flavors) if candidates.request.devices else {None}
    lines = {(candidates.request.pool, flavor) for flavor in flavors}
    row = None if lines & batch.kept_lines else find_nearest(batch.snapshot, candidates)
    if row is not None and row not in batch.kept_rows:
        batch.kept_rows.add(row)
        batch.kept_lines |= lines
        batch.earmarks[task.id] = batch.snapshot.record_at(row).id
