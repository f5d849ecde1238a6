"""Nodes on loan: what became of them, what a pass of replenishment sees, and each of its steps."""

from collections.abc import Sequence
from datetime import datetime

from millpond_contracts.bodies.loans import LoanState, LoanView, ReturnRequest, ShortageView
from millpond_contracts.bodies.nodes import CordonReason
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import (
    CapacityLow,
    CapacityRestored,
    LoanChanged,
    NodeCordoned,
    NodeDrainRequested,
)
from millpond_contracts.ids import LoanId, NodeId, PoolId
from millpond_kernel.audit import audit
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.capacity import Tally, available_of
from millpond_registry.domain.loans import OPEN, destination_of, enter_loan_state, moves_to, observe_loan
from millpond_registry.domain.nodes import remove_cordon, request_drain
from millpond_registry.domain.replenishment import CallOff, IdleNode, Lend, PoolRoom, Return, Short, Situation, Step
from millpond_registry.store import allocations, capacity, loans, nodes, pools
from millpond_registry.store.clock import read_clock
from millpond_registry.usecases.nodes import save_node
from millpond_registry.usecases.pools import get_pool

# The scheduler ends an idle node's drain at once; where work came first, the loan is called off long before this.
_IDLE_DEADLINE_SECONDS = 3600


async def observe_loans(unit: UnitOfWork) -> None:
    """Brings every open loan up to what its node's row says."""
    now, rules = await read_clock(unit), {pool.pool_id: pool for pool in await pools.read_all_pools(unit)}
    for seen in await loans.list_open_loans(unit):
        loan = await loans.lock_loan(unit, seen.loan_id)
        if loan is None or loan.state not in OPEN:
            continue
        node = await nodes.find_node(unit, loan.node_id)
        observed = observe_loan(loan, node, _return_after_seconds(rules.get(loan.to_pool_id), loan), now)
        if observed != loan:
            await _save(unit, observed)


async def read_situation(unit: UnitOfWork) -> Situation:
    """Everything that a pass of replenishment looks at."""
    figures = {row["pool_id"]: Tally.from_json(row["tally"]) for row in await capacity.read_all_figures(unit)}
    rooms = {
        pool.pool_id: PoolRoom(pool.pool_id, pool.name, pool.thresholds, available_of(figures[pool.pool_id]))
        for pool in await pools.read_all_pools(unit)
        if pool.pool_id in figures
    }
    open_loans = await loans.list_open_loans(unit)
    involved = {donor for room in rooms.values() for threshold in room.thresholds for donor in threshold.donors}
    idle = await loans.find_idle_nodes(unit, [*involved, *(loan.to_pool_id for loan in open_loans)])
    return Situation(
        pools=rooms,
        idle=[
            IdleNode(
                NodeId.of(row["id"]),
                row["name"],
                PoolId.of(row["pool_id"]),
                available_of(Tally.from_json(row["tally"])),
            )
            for row in idle
        ],
        loans=open_loans,
        low=frozenset((shortage.pool_id, shortage.threshold) for shortage in await loans.list_shortages(unit)),
        now=await read_clock(unit),
    )


async def forget_shortages(unit: UnitOfWork) -> None:
    """Drops what is remembered of thresholds that a pool no longer has."""
    wanted = {pool.pool_id: {each.key for each in pool.thresholds} for pool in await pools.read_all_pools(unit)}
    for shortage in await loans.list_shortages(unit):
        if shortage.threshold not in wanted.get(shortage.pool_id, set()):
            await loans.delete_shortages(unit, shortage.pool_id, [shortage.threshold])


async def apply_step(unit: UnitOfWork, step: Step) -> None:
    """Takes one step; what has changed since it was decided makes it do nothing, and the next pass decides anew."""
    match step:
        case Short():
            await _tell(unit, step)
        case Lend():
            await _lend(unit, step)
        case Return():
            await _return(unit, step)
        case CallOff():
            await _call_off(unit, step)


async def list_shortages(unit: UnitOfWork, pool_id: PoolId) -> Sequence[ShortageView]:
    """What the pool is short of.

    Raises:
        ProblemError: 404 unknown.
    """
    await get_pool(unit, pool_id)
    return await loans.list_shortages(unit, pool_id)


async def return_node(
    unit: UnitOfWork, caller: Principal, pool_id: PoolId, loan_id: LoanId, request: ReturnRequest
) -> LoanView:
    """The loan with its node asked home by an operator; what runs at the deadline is stopped.

    Raises:
        ProblemError: 404 for a loan that is not this pool's, 409 when its node is not in the borrowing pool.
    """
    loan = await loans.lock_loan(unit, loan_id)
    if loan is None or pool_id not in (loan.from_pool_id, loan.to_pool_id):
        raise ProblemError(ErrorCode.LOAN_NOT_FOUND, f"Pool {pool_id} has no loan {loan_id}.")
    if loan.state not in (LoanState.LENT, LoanState.RETURNING):
        raise ProblemError(ErrorCode.LOAN_STATE, f"Loan {loan_id} is {loan.state}; only a lent node can return.")
    now = await read_clock(unit)
    returning = loan.model_copy(
        update={
            "state": LoanState.RETURNING,
            "state_since": now,
            "due_at": now,
            "reason": "an operator asked for it",
            "generation": loan.generation + 1,
        }
    )
    if not await _send_home(unit, loan, request.deadline_seconds, now):
        raise ProblemError(ErrorCode.LOAN_STATE, f"Node {loan.node_name} is being emptied for another reason.")
    await _save(unit, returning)
    audit(unit, caller, "loan.return", str(loan_id), before=loan, after=returning)
    return returning


async def _tell(unit: UnitOfWork, step: Short) -> None:
    pool = await pools.lock_pool(unit, step.pool_id)
    if pool is None:
        return
    known = {shortage.threshold: shortage for shortage in await loans.list_shortages(unit, step.pool_id)}
    before = known.get(step.threshold.key)
    if step.is_low == (before is not None):
        return
    shortage = ShortageView(
        pool_id=step.pool_id,
        threshold=step.threshold.key,
        low=step.threshold.low,
        available=step.available,
        since=await read_clock(unit) if before is None else before.since,
    )
    if step.is_low:
        await loans.put_shortage(unit, shortage)
    else:
        await loans.delete_shortages(unit, step.pool_id, [step.threshold.key])
    await capacity.lock_figures(unit, [step.pool_id])
    generation = await capacity.raise_figures(unit, step.pool_id)
    event = CapacityLow if step.is_low else CapacityRestored
    unit.emit(event(shortage=shortage, generation=generation))


async def _lend(unit: UnitOfWork, step: Lend) -> None:
    now = await read_clock(unit)
    loan = LoanView(
        loan_id=LoanId.new(),
        node_id=step.node.node_id,
        node_name=step.node.name,
        from_pool_id=step.node.pool_id,
        to_pool_id=step.to_pool_id,
        threshold=step.threshold.key,
        amount=step.node.offers[step.threshold.key],
        state=LoanState.MOVING,
        state_since=now,
        reason=step.reason,
        asked_at=now,
        generation=1,
    )
    if await _move(unit, loan, step.to_pool_id, _IDLE_DEADLINE_SECONDS, now, only_idle=True):
        await loans.insert_loan(unit, loan)
        unit.emit(LoanChanged(loan=loan))


async def _return(unit: UnitOfWork, step: Return) -> None:
    loan = await loans.lock_loan(unit, step.loan.loan_id)
    if loan is None or loan.generation != step.loan.generation:
        return
    now = await read_clock(unit)
    deadline = _IDLE_DEADLINE_SECONDS if step.grace_seconds is None else step.grace_seconds
    if await _send_home(unit, loan, deadline, now, only_idle=step.grace_seconds is None):
        await _save(unit, enter_loan_state(loan, LoanState.RETURNING, step.reason, now))


async def _call_off(unit: UnitOfWork, step: CallOff) -> None:
    loan = await loans.lock_loan(unit, step.loan.loan_id)
    if loan is None or loan.generation != step.loan.generation:
        return
    node = await nodes.lock_node(unit, loan.node_id)
    if node is None or not moves_to(node, destination_of(loan)):
        return
    await save_node(unit, node, remove_cordon(node, CordonReason.MOVE), NodeCordoned)
    stays = LoanState.ENDED if loan.state is LoanState.MOVING else LoanState.LENT
    await _save(unit, enter_loan_state(loan, stays, step.reason, await read_clock(unit)))


async def _send_home(
    unit: UnitOfWork, loan: LoanView, deadline_seconds: int, now: datetime, *, only_idle: bool = False
) -> bool:
    return await _move(unit, loan, loan.from_pool_id, deadline_seconds, now, only_idle=only_idle)


async def _move(
    unit: UnitOfWork, loan: LoanView, target: PoolId, deadline_seconds: int, now: datetime, *, only_idle: bool
) -> bool:
    """Asks for the node's drained move; False when the node, or the pool, is not as it was when that was decided."""
    node = await nodes.lock_node(unit, loan.node_id)
    home = loan.from_pool_id if target == loan.to_pool_id else loan.to_pool_id
    if node is None or node.pool_id != home:
        return False
    if node.drain is not None and not moves_to(node, target):
        return False
    if only_idle and (not node.schedulable or await allocations.count_live(unit, node.id)):
        return False
    if await pools.lock_pool(unit, target) is None:
        return False
    moving = request_drain(node, CordonReason.MOVE, deadline_seconds, now, move_to=target)
    await save_node(unit, node, moving, NodeDrainRequested)
    return True


async def _save(unit: UnitOfWork, loan: LoanView) -> None:
    await loans.update_loan(unit, loan)
    unit.emit(LoanChanged(loan=loan))


def _return_after_seconds(keeper: PoolView | None, loan: LoanView) -> int:
    rules = () if keeper is None else keeper.thresholds
    return next((rule.return_after_seconds for rule in rules if rule.key == loan.threshold), 0)
