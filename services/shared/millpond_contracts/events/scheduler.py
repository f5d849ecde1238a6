"""Events of the scheduler. Allocation events carry the whole allocation; no event carries command or environment."""

from millpond_contracts.bodies.allocations import AllocationView, EndReason
from millpond_contracts.bodies.jobs import JobView
from millpond_contracts.bodies.scaling import PoolDemand
from millpond_contracts.events.envelope import Event
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, TaskId, TenantId, VirtualPoolId


class JobEvent(Event):
    """A change of one job; `job` is its state after the change."""

    job: JobView

    def subject(self) -> str:
        return str(self.job.job_id)

    def tenant(self) -> TenantId:
        return self.job.tenant_id

    def generation_of(self) -> int:
        return self.job.generation


class JobSubmitted(JobEvent):
    type = "scheduler.job_submitted.v1"


class JobStateChanged(JobEvent):
    type = "scheduler.job_state_changed.v1"


class AllocationEvent(Event):
    """A change of one allocation; `allocation` is its state after the change."""

    allocation: AllocationView

    def subject(self) -> str:
        return str(self.allocation.allocation_id)

    def tenant(self) -> TenantId:
        return self.allocation.tenant_id

    def generation_of(self) -> int:
        return self.allocation.generation


class AllocationBound(AllocationEvent):
    """Devices are held from `bound_at`; they count against the limits."""

    type = "scheduler.allocation_bound.v1"


class AllocationActivated(AllocationEvent):
    """The agent confirmed that the process runs with its devices: billed from `active_at`."""

    type = "scheduler.allocation_activated.v1"


class AllocationStopRequested(AllocationEvent):
    """A stop was ordered; `waived_from` is set when the provider caused it."""

    type = "scheduler.allocation_stop_requested.v1"


class AllocationReleased(AllocationEvent):
    """The group is empty and the devices are free: billed until `released_at`."""

    type = "scheduler.allocation_released.v1"


class NodeEmptied(Event):
    """Nothing is left on a node being drained; `drain_generation` is that of the request."""

    type = "scheduler.node_emptied.v1"
    node_id: NodeId
    drain_generation: int
    generation: int

    def subject(self) -> str:
        return str(self.node_id)

    def generation_of(self) -> int:
        return self.generation


class AdmissionChanged(Event):
    """A limit of a virtual pool began (`blocked`) or ceased to hold work back."""

    type = "scheduler.admission_changed.v1"
    virtual_pool_id: VirtualPoolId
    tenant_id: TenantId
    resource: str
    flavor: str | None
    blocked: bool
    used: int
    hard: int
    missing: int
    generation: int

    def subject(self) -> str:
        return f"{self.virtual_pool_id}/{self.resource}/{self.flavor or '*'}"

    def tenant(self) -> TenantId:
        return self.tenant_id

    def generation_of(self) -> int:
        return self.generation


class DemandChanged(Event):
    """What waits in a pool and is held back by capacity alone; at most one a second per pool."""

    type = "scheduler.demand_changed.v1"
    demand: PoolDemand

    def subject(self) -> str:
        return f"{self.demand.pool_id}/demand"

    def generation_of(self) -> int:
        return self.demand.generation


class NodeQuarantined(Event):
    """So many jobs in a row failed on a node within seconds of their start that nothing new goes there. An alarm."""

    type = "scheduler.node_quarantined.v1"
    node_id: NodeId
    failures: int
    within_seconds: int
    last_reason: EndReason
    generation: int

    def subject(self) -> str:
        return f"{self.node_id}/quarantine"

    def generation_of(self) -> int:
        return self.generation


class EvacuationFrozen(Event):
    """So many of a pool's nodes fell silent together that the work on them is not given up for now. An alarm."""

    type = "scheduler.evacuation_frozen.v1"
    pool_id: PoolId
    silent_nodes: int
    nodes: int
    generation: int

    def subject(self) -> str:
        return f"{self.pool_id}/evacuation"

    def generation_of(self) -> int:
        return self.generation


class EvacuationResumed(EvacuationFrozen):
    """Few enough are silent again: a node whose lease ran out is given up as ever."""

    type = "scheduler.evacuation_resumed.v1"


class PreemptionHalted(Event):
    """Work was not stopped for other work, since it would go on for ever. An alarm.

    `why`: `loop` (one of the two was stopped for the other within the hour) or `stopped_too_often`.
    """

    type = "scheduler.preemption_halted.v1"
    pool_id: PoolId
    claimant_job_id: JobId
    victim_job_id: JobId
    victim_tenant_id: TenantId
    why: str
    generation: int

    def subject(self) -> str:
        return f"{self.pool_id}/preemption"

    def generation_of(self) -> int:
        return self.generation


class MoveOrdered(Event):
    """A running task was ordered to stop so that it starts anew on a node that is kept for it; whom that serves.

    `ordered_by` is `policy` for the pool's own rules, else who ordered it.
    """

    type = "scheduler.move_ordered.v1"
    pool_id: PoolId
    served_job_id: JobId
    allocation_id: AllocationId
    moved_job_id: JobId
    moved_task_id: TaskId
    from_node_id: NodeId
    to_node_id: NodeId
    ordered_by: str
    generation: int

    def subject(self) -> str:
        return str(self.moved_task_id)

    def generation_of(self) -> int:
        return self.generation


class MoveEnded(Event):
    """A move is over and its place is kept no longer. `result`: `moved`, `elsewhere`, `ended` or `given_up`."""

    type = "scheduler.move_ended.v1"
    pool_id: PoolId
    served_job_id: JobId
    allocation_id: AllocationId
    moved_job_id: JobId
    moved_task_id: TaskId
    to_node_id: NodeId
    result: str
    generation: int

    def subject(self) -> str:
        return str(self.moved_task_id)

    def generation_of(self) -> int:
        return self.generation


class MoveRefused(Event):
    """Moves that were asked for are not carried out, and nothing was stopped; `message` says why."""

    type = "scheduler.move_refused.v1"
    pool_id: PoolId
    served_job_id: JobId
    ordered_by: str
    message: str
    generation: int

    def subject(self) -> str:
        return f"{self.served_job_id}/moves"

    def generation_of(self) -> int:
        return self.generation


class UsageDriftFound(Event):
    """A counter differed from the sum of live allocations and was repaired. An alarm."""

    type = "scheduler.usage_drift_found.v1"
    counter: str
    expected: int
    found: int
    generation: int

    def subject(self) -> str:
        return self.counter

    def generation_of(self) -> int:
        return self.generation


ALLOCATION_EVENTS: tuple[type[AllocationEvent], ...] = (
    AllocationBound,
    AllocationActivated,
    AllocationStopRequested,
    AllocationReleased,
)
