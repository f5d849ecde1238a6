"""Limits: whether a virtual pool may hold more, and by how much it may not.

Amounts are milli-CPU, MiB and device milli per flavor. The order in which limits are charged is the order of the
queue, and each task of a batch sees what the earlier ones were given.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

from millpond_contracts.bodies.tenants import Limit, Limits, Preemption, QueuePolicy
from millpond_contracts.ids import PoolId, ProjectId, TenantId, VirtualPoolId
from millpond_scheduler.domain.plans import AdmissionLine, Placement
from millpond_scheduler.domain.verdicts import Reason


class Resource(NamedTuple):
    """What a limit is set on: `cpu` or `memory`, or `device` with its flavor."""

    name: str
    flavor: str | None = None


CPU = Resource("cpu")
MEMORY = Resource("memory")

_NOTHING = Limit()


class Wants(NamedTuple):
    """What one task counts against limits: `base` in any case, and one of `any_of`, by the flavor that it gets.

    `flavors` are those that it could get, by name.
    """

    base: dict[Resource, int]
    any_of: dict[Resource, int]
    flavors: tuple[str, ...]


@cache
def device(flavor: str) -> Resource:
    """The devices of one flavor as something limited."""
    return Resource("device", flavor)


def demand_of(placement: Placement) -> dict[Resource, int]:
    """What a placement counts against the limits of its virtual pool."""
    demand = {CPU: placement.holding.cpu_milli, MEMORY: placement.holding.memory_mib}
    if placement.flavor is not None:
        demand[device(placement.flavor)] = placement.holding.device_milli
    return demand


def add_amounts(sums: dict[Resource, int], amounts: Mapping[Resource, int], sign: int = 1) -> None:
    """Adds amounts to sums, or takes them off."""
    for resource, amount in amounts.items():
        sums[resource] = sums.get(resource, 0) + sign * amount


@dataclass(frozen=True, slots=True)
class VirtualPoolState:
    """A tenant's share of a pool: its limits and what its live allocations hold, in all and by project.

    `minimum_runtime_seconds`: before that its tasks are not stopped for others.
    """

    id: VirtualPoolId
    tenant: TenantId
    pool: PoolId
    limits: Limits
    used: Mapping[Resource, int] = field(default_factory=dict)
    policy: QueuePolicy = QueuePolicy.PRIORITY
    used_by: Mapping[ProjectId | None, Mapping[Resource, int]] = field(default_factory=dict)
    preemption: Preemption = Preemption.NEVER
    minimum_runtime_seconds: int = 0

    @property
    def stops_lower(self) -> bool:
        """Whether its tasks may stop others of it that have a lower priority."""
        return self.policy is QueuePolicy.PRIORITY and self.preemption is Preemption.LOWER_PRIORITY

    def limit_of(self, resource: Resource) -> Limit:
        """The limit on a resource; a flavor that is not named may not be used at all."""
        if resource.flavor is not None:
            return self.limits.devices.get(resource.flavor, _NOTHING)
        return self.limits.cpu if resource.name == CPU.name else self.limits.memory

    def list_limited(self) -> list[Resource]:
        """Every resource of which this virtual pool has a limit."""
        return [CPU, MEMORY, *(device(flavor) for flavor in self.limits.devices)]


def with_reserved(limits: Limits, reserved: Mapping[str, int]) -> Limits:
    """The limits in an open window: what is reserved is the virtual pool's own as if guaranteed, and is not lent.

    The cap stays; what would pass it is not added.

    Args:
        reserved: flavor -> device milli.
    """
    devices = dict(limits.devices)
    for flavor, amount in reserved.items():
        limit = devices.get(flavor, _NOTHING)
        own = min(limit.guaranteed + amount, limit.cap)
        devices[flavor] = Limit(guaranteed=own, borrow=limit.cap - own, lend=limit.lend, hard=limit.cap)
    return limits.model_copy(update={"devices": devices})


class PoolBalance:
    """What is free in a pool, and what of it must stay free for guarantees that are not used; counted when needed."""

    def __init__(self, members: list["Balance"], free_of: Callable[[], Mapping[Resource, int]]) -> None:
        self._members = members
        self._free_of = free_of
        self._free: dict[Resource, int] | None = None
        self._unfilled: dict[Resource, int] = {}
        self._guaranteed: set[Resource] | None = None

    def short_of(self, resource: Resource, amount: int, account: "_Account") -> int:
        """How much would be missing to others' unused guarantees if so much more were borrowed on this account."""
        free, unfilled = self.count(), self._unfilled.get(resource, 0)
        if not unfilled or unfilled <= account.unfilled:
            return 0  # nothing is kept for others; whether there is room at all is the filters' business
        return amount + unfilled - account.unfilled - free.get(resource, 0)

    def is_guaranteed(self, resource: Resource) -> bool:
        """Whether any of it is guaranteed to anybody."""
        if self._guaranteed is None:
            self._guaranteed = {
                limited
                for member in self._members
                for limited in member.state.list_limited()
                if member.state.limit_of(limited).guaranteed
            }
        return resource in self._guaranteed

    def count(self) -> Mapping[Resource, int]:
        """What is free, counted on the pool as it is at the first call."""
        if self._free is None:
            self._free = dict(self._free_of())
            for member in self._members:
                for limited in member.state.list_limited():
                    self._unfilled[limited] = self._unfilled.get(limited, 0) + member.unfilled(limited)
        return self._free

    def take(self, resource: Resource, amount: int, less_unfilled: int) -> None:
        """Count a placement."""
        if self._free is not None:
            self._free[resource] = self._free.get(resource, 0) - amount
            if less_unfilled:
                self._unfilled[resource] = self._unfilled.get(resource, 0) - less_unfilled


@dataclass(slots=True)
class _Account:
    """What a virtual pool holds of one resource, its guarantee, the most it may hold, and what of it is not lent."""

    used: int
    guaranteed: int
    cap: int
    own: int

    @property
    def unfilled(self) -> int:
        """What must stay free for it: guaranteed, not used, not lent."""
        return max(0, self.own - self.used)


class Balance:
    """What one virtual pool holds while a batch is planned: asked before each placement, charged after it.

    A virtual pool that stays within its guarantee is only held to its cap. One that borrows must also leave free
    what others are guaranteed, do not use and do not lend.
    """

    def __init__(self, state: VirtualPoolState, pool: PoolBalance) -> None:
        self.state = state
        self._pool = pool
        self._used = dict(state.used)
        self._accounts: dict[Resource, _Account] = {}

    def _account_of(self, resource: Resource) -> _Account:
        found = self._accounts.get(resource)
        if found is None:
            limit, used = self.state.limit_of(resource), self._used.get(resource, 0)
            found = _Account(used, limit.guaranteed, limit.cap, limit.guaranteed - limit.lend)
            self._accounts[resource] = found
        return found

    def unfilled(self, resource: Resource) -> int:
        """What must stay free for this virtual pool: guaranteed, not used, not lent."""
        return self._account_of(resource).unfilled

    def is_guaranteed(self, resource: Resource, amount: int) -> bool:
        """Whether so much more would still be its own share, not borrowed."""
        account = self._account_of(resource)
        return account.used + amount <= account.guaranteed

    @property
    def used(self) -> Mapping[Resource, int]:
        """What it holds, and what the batch has given or promised it."""
        return self._used

    def is_own(self, wants: Wants, tasks: int = 1) -> bool:
        """Whether so many tasks more would hold nothing but its own share: all of the base, and one of the others.

        What nobody of the pool is guaranteed is nobody's share: there is nothing to borrow.
        """
        for resource, amount in wants.base.items():
            if not self._stays_own(resource, tasks * amount):
                return False
        for resource, amount in wants.any_of.items():
            if self._stays_own(resource, tasks * amount):
                return True
        return not wants.any_of

    def _stays_own(self, resource: Resource, amount: int) -> bool:
        return not amount or self.is_guaranteed(resource, amount) or not self._pool.is_guaranteed(resource)

    def count_pool(self) -> None:
        """Counts the pool now, before a trial changes what is free in it."""
        self._pool.count()

    def find_block(self, demand: Mapping[Resource, int]) -> Reason | None:
        """Why the virtual pool may not hold so much more; None when it may. Its own limits come first."""
        found = None
        for resource, amount in demand.items():
            block = self.find_block_of(resource, amount)
            if block is Reason.LIMIT_REACHED:
                return block
            found = found or block
        return found

    def find_block_of(self, resource: Resource, amount: int) -> Reason | None:
        """The same for one resource."""
        account = self._account_of(resource)
        after = account.used + amount
        if not amount or after <= account.guaranteed:
            return None
        if after > account.cap:
            return Reason.LIMIT_REACHED
        return Reason.GUARANTEE_OF_OTHERS if self._pool.short_of(resource, amount, account) > 0 else None

    def describe(self, resource: Resource, amount: int) -> AdmissionLine:
        """One limit as the demand meets it, with what is missing."""
        limit, used = self.state.limit_of(resource), self._used.get(resource, 0)
        missing = max(0, used + amount - limit.cap) if amount else 0
        if not missing and amount and used + amount > limit.guaranteed:
            missing = max(0, self._pool.short_of(resource, amount, self._account_of(resource)))
        return AdmissionLine(
            resource=resource.name,
            flavor=resource.flavor,
            limit=limit.cap,
            guaranteed=limit.guaranteed,
            used=used,
            borrowed=max(0, used - limit.guaranteed),
            requested=amount,
            missing=missing,
        )

    def find_excess(self, resources: Iterable[Resource]) -> Resource | None:
        """Something of which it holds more than it may: above its cap, or borrowed of what others are guaranteed."""
        for resource in resources:
            limit, used = self.state.limit_of(resource), self._used.get(resource, 0)
            if used > limit.cap:
                return resource
            if used > limit.guaranteed and self._pool.short_of(resource, 0, self._account_of(resource)) > 0:
                return resource
        return None

    def charge(self, demand: Mapping[Resource, int], sign: int = 1) -> None:
        """Count a placement, or take it off."""
        for resource, held in demand.items():
            account, amount = self._account_of(resource), sign * held
            unfilled = account.unfilled if account.own else 0
            account.used = self._used[resource] = account.used + amount
            self._pool.take(resource, amount, unfilled - account.unfilled if account.own else 0)


class Ledger:
    """The balances of all virtual pools of a shard for one batch.

    Args:
        virtual_pools: all of them, not only those with waiting tasks: the guarantees of idle ones count.
        free_of: what is free on the schedulable nodes of a pool now; asked at most once per pool, when one borrows.
    """

    def __init__(
        self,
        virtual_pools: Mapping[VirtualPoolId, VirtualPoolState],
        free_of: Callable[[PoolId], Mapping[Resource, int]],
    ) -> None:
        members: dict[PoolId, list[Balance]] = {state.pool: [] for state in virtual_pools.values()}
        pools = {pool: PoolBalance(listed, partial(free_of, pool)) for pool, listed in members.items()}
        self._balances = {key: Balance(state, pools[state.pool]) for key, state in virtual_pools.items()}
        for balance in self._balances.values():
            members[balance.state.pool].append(balance)

    def states(self) -> Mapping[VirtualPoolId, VirtualPoolState]:
        """The virtual pools as they were before the batch."""
        return {key: balance.state for key, balance in self._balances.items()}

    def find_balance(self, virtual_pool: VirtualPoolId) -> Balance | None:
        """The balance of a virtual pool, None when it is not known."""
        return self._balances.get(virtual_pool)
