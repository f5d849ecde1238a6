"""Facts about one allocation, as its events tell them. They may arrive twice and in any order.

An event carries the whole allocation, so one event may yield several facts; the same fact told by a later event is no
conflict. `generation` is that of the allocation and orders facts of one kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, ProjectId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.prices import Sku


@dataclass(frozen=True, slots=True)
class Holding:
    """What is held: SKU -> smallest units (milli-devices, milli-cores, MiB), sorted, without zeros."""

    amounts: tuple[tuple[Sku, int], ...]

    @classmethod
    def of(cls, amounts: Mapping[Sku, int]) -> Self:
        """The holding of these amounts.

        Raises:
            ValueError: an amount is negative.
        """
        if any(amount < 0 for amount in amounts.values()):
            raise ValueError(f"expected amounts of zero or more, found {amounts}")
        return cls(tuple(sorted((sku, amount) for sku, amount in amounts.items() if amount)))

    def amount(self, sku: Sku) -> int:
        """Smallest units of `sku`; zero when it is not held."""
        return next((amount for held, amount in self.amounts if held == sku), 0)


@dataclass(frozen=True, slots=True)
class Parties:
    """Whose allocation it is, for what, and where."""

    tenant_id: TenantId
    project_id: ProjectId | None
    job_id: JobId
    task_id: TaskId
    virtual_pool_id: VirtualPoolId
    pool_id: PoolId
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Bound:
    """Held from `at` on."""

    allocation_id: AllocationId
    generation: int
    at: int
    parties: Parties
    holding: Holding


@dataclass(frozen=True, slots=True)
class Activated:
    """The agent confirmed that the process runs with its devices: metered from `at` on."""

    allocation_id: AllocationId
    generation: int
    at: int


@dataclass(frozen=True, slots=True)
class Resized:
    """Holds `holding` from `at` on. No event tells it yet: it comes with `scheduler.allocation_resized`."""

    allocation_id: AllocationId
    generation: int
    at: int
    holding: Holding


@dataclass(frozen=True, slots=True)
class ProviderStopRequested:
    """The provider asked the work to stop (preemption, drain, move): waived from `at` on."""

    allocation_id: AllocationId
    generation: int
    at: int


@dataclass(frozen=True, slots=True)
class Released:
    """Everything is free again. `provider_fault`: the provider ended it, so that no minimum is charged."""

    allocation_id: AllocationId
    generation: int
    at: int
    reason: str
    provider_fault: bool = False


Fact = Bound | Activated | Resized | ProviderStopRequested | Released
