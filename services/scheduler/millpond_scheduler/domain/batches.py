"""One batch while it is decided: what every step of the cycle reads and writes."""

from dataclasses import dataclass, field

from millpond_contracts.ids import TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import Balance, Ledger, demand_of
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.holds import Holds
from millpond_scheduler.domain.order import Turns
from millpond_scheduler.domain.plans import Claim, DevicePick, Halted, Holding, Placement, Reclaim, Rejection, Search
from millpond_scheduler.domain.reclaim import Lent
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.snapshot import Snapshot


@dataclass(slots=True)
class Batch:
    """The pool as the batch has changed it so far, and what was decided; `claims` are those of former batches too."""

    snapshot: Snapshot
    cache: CandidateCache
    ledger: Ledger
    lent: Lent
    turns: Turns
    holds: Holds
    claims: dict[TaskId, Claim]
    placements: list[Placement]
    rejections: dict[TaskId, Rejection] = field(default_factory=dict)
    blocked: dict[tuple[object, ...], Rejection] = field(default_factory=dict)
    full: dict[tuple[VirtualPoolId, RequestClass], tuple[frozenset[int], Rejection]] = field(default_factory=dict)
    reclaims: list[Reclaim] = field(default_factory=list)
    halted: list[Halted] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    now_us: int = 0


def take(
    batch: Batch,
    task: QueuedTask,
    balance: Balance,
    request: RequestClass,
    row: int,
    picks: tuple[DevicePick, ...],
) -> None:
    """Give a task its place: what comes after it in this batch sees that."""
    # 4. Take it on the snapshot and charge the limits, so that the next task of this batch sees both.
    snapshot = batch.snapshot
    node = snapshot.record_at(row)
    holding = Holding(task.id, node.id, request.tenant, request.cpu_milli, request.memory_mib, picks, task.kin)
    snapshot.place(holding)
    flavor = snapshot.find_flavor(picks[0].device) if picks else None
    placement = Placement(holding, task.virtual_pool, flavor, node.incarnation)
    balance.charge(demand_of(placement))
    batch.placements.append(placement)
    batch.holds.note(task)


def give_back(batch: Batch, mark: int, placed: int) -> None:
    """Undo the placements of a gang of which one task found no place."""
    for placement in batch.placements[placed:]:
        balance = batch.ledger.find_balance(placement.virtual_pool)
        assert balance is not None, "it was charged before"
        balance.charge({resource: -amount for resource, amount in demand_of(placement).items()})
    del batch.placements[placed:]
    batch.snapshot.undo_to(mark)
