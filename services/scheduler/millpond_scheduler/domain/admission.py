"""Limits: whether a virtual pool may hold more, and by how much it may not.

Amounts are milli-CPU, MiB and device milli per flavor. The order in which limits are charged is the order of the
queue, and each task of a batch sees what the earlier ones were given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millpond_contracts.bodies.tenants import Limit, Limits, QueuePolicy
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId
from millpond_scheduler.domain.plans import AdmissionLine
from millpond_scheduler.domain.verdicts import Reason


class Resource(NamedTuple):
    """What a limit is set on: `cpu` or `memory`, or `device` with its flavor."""

    name: str
    flavor: str | None = None


CPU = Resource("cpu")
MEMORY = Resource("memory")

_NOTHING = Limit()


def device(flavor: str) -> Resource:
    """The devices of one flavor as something limited."""
    return Resource("device", flavor)


@dataclass(frozen=True, slots=True)
class VirtualPoolState:
    """A tenant's share of a pool: its limits and what its live allocations hold."""

    id: VirtualPoolId
    tenant: TenantId
    pool: PoolId
    limits: Limits
    used: Mapping[Resource, int] = field(default_factory=dict)
    policy: QueuePolicy = QueuePolicy.PRIORITY

    def limit_of(self, resource: Resource) -> Limit:
        """The limit on a resource; a flavor that is not named may not be used at all."""
        if resource is CPU or resource == CPU:
            return self.limits.cpu
        if resource is MEMORY or resource == MEMORY:
            return self.limits.memory
        return self.limits.devices.get(resource.flavor or "", _NOTHING)

    def list_limited(self) -> list[Resource]:
        """Every resource of which this virtual pool has a limit."""
        return [CPU, MEMORY, *(device(flavor) for flavor in self.limits.devices)]


def fits_limits(state: VirtualPoolState, demand: Mapping[Resource, int]) -> dict[Resource, int]:
    """What is missing under each resource's cap for the demand; empty = the limits allow it."""
    missing = {
        resource: state.used.get(resource, 0) + amount - state.limit_of(resource).cap
        for resource, amount in demand.items()
    }
    return {resource: amount for resource, amount in missing.items() if amount > 0}


@dataclass(slots=True)
class _PoolAccount:
    """What is free in a pool, and what of it must stay free for guarantees that are not used."""

    free: dict[Resource, int]
    unfilled: dict[Resource, int]


class Ledger:
    """What each virtual pool holds while a batch is planned: asked before each placement, charged after it.

    A virtual pool that stays within its guarantee is only held to its cap. One that borrows must also leave free
    what others are guaranteed, do not use and do not lend.

    Args:
        virtual_pools: all virtual pools of the shard, not only those with waiting tasks: guarantees of idle ones count.
        free_of: what is free on the schedulable nodes of a pool now; asked at most once per pool, when one borrows.
    """

    def __init__(
        self,
        virtual_pools: Mapping[VirtualPoolId, VirtualPoolState],
        free_of: Callable[[PoolId], Mapping[Resource, int]],
    ) -> None:
        self._virtual_pools = virtual_pools
        self._free_of = free_of
        self._used: dict[VirtualPoolId, dict[Resource, int]] = {}
        self._accounts: dict[PoolId, _PoolAccount] = {}

    def used_by(self, state: VirtualPoolState) -> dict[Resource, int]:
        """What the virtual pool holds, this batch included."""
        found = self._used.get(state.id)
        if found is None:
            found = self._used[state.id] = dict(state.used)
        return found

    def find_block(self, state: VirtualPoolState, demand: Mapping[Resource, int]) -> Reason | None:
        """Why the virtual pool may not hold so much more; None when it may. Its own limits come first."""
        used, borrows = self.used_by(state), False
        for resource, amount in demand.items():
            limit, after = state.limit_of(resource), used.get(resource, 0) + amount
            if amount and after > limit.guaranteed:
                if after > limit.cap:
                    return Reason.LIMIT_REACHED
                borrows = borrows or self._short_of_guarantees(state, resource, amount) > 0
        return Reason.GUARANTEE_OF_OTHERS if borrows else None

    def describe(self, state: VirtualPoolState, resource: Resource, amount: int) -> AdmissionLine:
        """One limit as the demand meets it, with what is missing."""
        limit, used = state.limit_of(resource), self.used_by(state).get(resource, 0)
        missing = max(0, used + amount - limit.cap) if amount else 0
        if not missing and amount and used + amount > limit.guaranteed:
            missing = max(0, self._short_of_guarantees(state, resource, amount))
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

    def charge(self, state: VirtualPoolState, demand: Mapping[Resource, int]) -> None:
        """Count a placement."""
        used, account = self.used_by(state), self._accounts.get(state.pool)
        for resource, amount in demand.items():
            before = used.get(resource, 0)
            used[resource] = before + amount
            if account is not None:
                account.free[resource] = account.free.get(resource, 0) - amount
                limit = state.limit_of(resource)
                change = _unfilled(limit, before + amount) - _unfilled(limit, before)
                account.unfilled[resource] = account.unfilled.get(resource, 0) + change

    def _short_of_guarantees(self, state: VirtualPoolState, resource: Resource, amount: int) -> int:
        """How much would be missing to others' unused guarantees if so much more were borrowed."""
        account = self._accounts.get(state.pool)
        if account is None:
            account = _PoolAccount(dict(self._free_of(state.pool)), self._sum_unfilled(state.pool))
            self._accounts[state.pool] = account
        others = account.unfilled.get(resource, 0)
        if others:
            others -= _unfilled(state.limit_of(resource), self.used_by(state).get(resource, 0))
        if not others:
            return 0  # nothing is kept for others; whether there is room at all is the filters' business
        return amount + others - account.free.get(resource, 0)

    def _sum_unfilled(self, pool: PoolId) -> dict[Resource, int]:
        total: dict[Resource, int] = {}
        for state in self._virtual_pools.values():
            if state.pool != pool:
                continue
            for resource in state.list_limited():
                unfilled = _unfilled(state.limit_of(resource), self.used_by(state).get(resource, 0))
                total[resource] = total.get(resource, 0) + unfilled
        return total


def _unfilled(limit: Limit, used: int) -> int:
    """What must stay free for this virtual pool: guaranteed, not used, not lent."""
    return max(0, limit.guaranteed - used - limit.lend)
