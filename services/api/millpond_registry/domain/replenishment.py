"""What pools that are short do about it: whom they borrow nodes from, and when those return. Values in, steps out.

Order of one pass: first loans that cannot go on are given up, then shortages are told, then nodes are borrowed, then
nodes return. A pass never lends and returns the same node, and counts what is on its way as if it had arrived.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from millpond_contracts.bodies.loans import LoanState, LoanView, Threshold
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.quantities import plain_decimal

PATIENCE = timedelta(seconds=120)
"""How long an idle node may take to become empty before its loan, or its return, is called off: work came first."""


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """A pool's thresholds and what it has available: `device/<flavor>`, `cpu`, `memory` -> milli or MiB."""

    pool_id: PoolId
    name: str
    thresholds: tuple[Threshold, ...]
    available: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A node that takes work and holds none; `offers` as `PoolRoom.available`."""

    node_id: NodeId
    name: str
    pool_id: PoolId
    offers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Short:
    """The pool fell below its threshold (`is_low`), or is above it again."""

    pool_id: PoolId
    threshold: Threshold
    available: int
    is_low: bool


@dataclass(frozen=True, slots=True)
class Lend:
    """Move this idle node to the pool that is short."""

    node: IdleNode
    to_pool_id: PoolId
    threshold: Threshold
    reason: str


@dataclass(frozen=True, slots=True)
class Return:
    """Move the node back; `grace_seconds` None = only while it stays idle."""

    loan: LoanView
    reason: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class CallOff:
    """Work came to the node before it was empty: it stays where it is."""

    loan: LoanView
    reason: str


Step = Short | Lend | Return | CallOff


@dataclass(slots=True)
class Situation:
    """Everything that one pass knows. `low` names the (pool, threshold) pairs that are known to be short."""

    pools: Mapping[PoolId, PoolRoom]
    idle: Sequence[IdleNode]
    loans: Sequence[LoanView]
    low: frozenset[tuple[PoolId, str]]
    now: datetime
    taken: set[NodeId] = field(default_factory=set)
    lent: dict[tuple[PoolId, str], int] = field(default_factory=lambda: defaultdict(int))
    """What this pass took from a donor, or will give back from a borrower, per resource."""

    def available(self, pool: PoolRoom, key: str) -> int:
        """What the pool has left after the steps of this pass."""
        return pool.available.get(key, 0) - self.lent[pool.pool_id, key]

    def take(self, node_id: NodeId, pool_id: PoolId, offers: Mapping[str, int]) -> None:
        """A step of this pass moves the node out of the pool."""
        self.taken.add(node_id)
        for key, amount in offers.items():
            self.lent[pool_id, key] += amount


def decide_replenishment(situation: Situation) -> list[Step]:
    """The steps of one pass, in the order in which they shall be taken."""
    steps: list[Step] = [*_call_off(situation)]
    pools = sorted(situation.pools.values(), key=lambda pool: pool.name)
    for pool in pools:
        for threshold in pool.thresholds:
            steps += _tell(situation, pool, threshold)
    for pool in pools:
        for threshold in pool.thresholds:
            steps += _borrow(situation, pool, threshold)
    return [*steps, *_return(situation)]


def amount_in_words(key: str, amount: int) -> str:
    """An amount as people say it: `2.5 cores`, `512 MiB of memory`, `4 devices of nvidia-tesla-t4`."""
    if key == "memory":
        return f"{amount} MiB of memory"
    number = plain_decimal(Decimal(amount).scaleb(-3))
    return f"{number} cores" if key == "cpu" else f"{number} devices of {key.partition('/')[2]}"


def _call_off(situation: Situation) -> Iterable[Step]:
    for loan in situation.loans:
        on_its_way = loan.state is LoanState.MOVING or (
            loan.state is LoanState.RETURNING and not _is_due(loan, situation)
        )
        if on_its_way and situation.now - loan.state_since > PATIENCE:
            yield CallOff(loan, "work came to the node before it was empty")


def _tell(situation: Situation, pool: PoolRoom, threshold: Threshold) -> Iterable[Step]:
    available = pool.available.get(threshold.key, 0)
    is_low = available < threshold.low
    if is_low != ((pool.pool_id, threshold.key) in situation.low):
        yield Short(pool.pool_id, threshold, available, is_low)


def _borrow(situation: Situation, pool: PoolRoom, threshold: Threshold) -> Iterable[Step]:
    key = threshold.key
    borrowed = [loan for loan in situation.loans if loan.to_pool_id == pool.pool_id and loan.threshold == key]
    promised = sum(loan.amount for loan in borrowed if loan.state is LoanState.MOVING)
    has = pool.available.get(key, 0) + promised
    if has >= threshold.low:
        return
    count = sum(loan.state is not LoanState.RETURNING for loan in borrowed)
    held = amount_in_words(key, pool.available.get(key, 0))
    reason = f"pool {pool.name} has {held} available, below {amount_in_words(key, threshold.low)}"
    while has < threshold.target and count < threshold.max_nodes:
        node = _find_donation(situation, threshold, threshold.target - has)
        if node is None:
            return
        situation.take(node.node_id, node.pool_id, node.offers)
        has += node.offers[key]
        count += 1
        yield Lend(node, pool.pool_id, threshold, reason)


def _find_donation(situation: Situation, threshold: Threshold, gap: int) -> IdleNode | None:
    """The donor's node that covers the gap with least to spare, else its largest; of the first donor that has one."""
    key = threshold.key
    # A node that is on loan is not its keeper's to lend.
    on_loan = {loan.node_id for loan in situation.loans}
    for donor_id in threshold.donors:
        donor = situation.pools.get(donor_id)
        if donor is None:
            continue
        spare = situation.available(donor, key) - max(threshold.donor_keeps, _own_need(donor, key))
        fitting = [
            node
            for node in situation.idle
            if node.pool_id == donor_id
            and node.node_id not in situation.taken | on_loan
            and 0 < node.offers.get(key, 0) <= spare
            and _keeps_its_own(situation, donor, node)
        ]
        if fitting:
            return min(fitting, key=lambda node: (_waste(node.offers[key], gap), node.name, node.node_id.int))
    return None


def _waste(offer: int, gap: int) -> tuple[int, int]:
    return (0, offer - gap) if offer >= gap else (1, -offer)


def _own_need(pool: PoolRoom, key: str) -> int:
    return max((threshold.low for threshold in pool.thresholds if threshold.key == key), default=0)


def _keeps_its_own(situation: Situation, donor: PoolRoom, node: IdleNode) -> bool:
    """Whether the donor stays above its own thresholds, of the node's other resources too."""
    return all(
        situation.available(donor, threshold.key) - node.offers.get(threshold.key, 0) >= threshold.low
        for threshold in donor.thresholds
        if node.offers.get(threshold.key, 0)
    )


def _return(situation: Situation) -> Iterable[Step]:
    idle = {node.node_id: node for node in situation.idle}
    for loan in sorted(situation.loans, key=lambda loan: (loan.asked_at, loan.loan_id.int)):
        if loan.state is not LoanState.LENT:
            continue
        keeper = situation.pools.get(loan.to_pool_id)
        node = idle.get(loan.node_id)
        if keeper is None:
            continue
        if _is_due(loan, situation):
            yield Return(loan, "the loan is due", _grace_seconds(keeper, loan))
        elif node is not None and (reason := _reason_to_return(situation, keeper, loan)):
            situation.take(node.node_id, keeper.pool_id, node.offers)
            yield Return(loan, reason)


def _reason_to_return(situation: Situation, keeper: PoolRoom, loan: LoanView) -> str | None:
    rule = _rule_of(keeper, loan)
    if rule is None:
        return "the threshold that it was lent for is gone"
    left = situation.available(keeper, loan.threshold) - loan.amount
    if left >= rule.target:
        return f"pool {keeper.name} has {amount_in_words(loan.threshold, left)} available without it"
    home = situation.pools.get(loan.from_pool_id)
    if (
        home is not None
        and left >= rule.low
        and situation.available(home, loan.threshold) < _own_need(home, loan.threshold)
    ):
        return f"pool {home.name}, which lent it, is short itself"
    return None


def _is_due(loan: LoanView, situation: Situation) -> bool:
    return loan.due_at is not None and situation.now >= loan.due_at


def _grace_seconds(keeper: PoolRoom, loan: LoanView) -> int:
    rule = _rule_of(keeper, loan)
    return 3600 if rule is None else rule.return_grace_seconds


def _rule_of(keeper: PoolRoom, loan: LoanView) -> Threshold | None:
    return next((threshold for threshold in keeper.thresholds if threshold.key == loan.threshold), None)
