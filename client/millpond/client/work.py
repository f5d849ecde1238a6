"""What is held and what waits: allocations, use against limits, queues."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from millpond.client.calls import get, get_page
from millpond.client.nouns import Noun
from millpond_contracts.bodies.allocations import AllocationState, AllocationView
from millpond_contracts.bodies.verdicts import QueueEntry, UsageLine
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, ProjectId, TenantId, VirtualPoolId


class Allocations(Noun):
    """`/v1/allocations`."""

    def list(
        self,
        *,
        job_id: JobId | None = None,
        node_id: NodeId | None = None,
        virtual_pool: VirtualPoolId | None = None,
        state: AllocationState | Sequence[AllocationState] = (),
        project: ProjectId | None = None,
        label: str | Sequence[str] = (),
        tenant_id: TenantId | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[AllocationView]:
        """What tasks hold or held, oldest first; `since` and `until` are about when it was bound."""
        filters = {
            "job_id": job_id,
            "node_id": node_id,
            "virtual_pool": virtual_pool,
            "state": state,
            "project": project,
            "label": label,
            "tenant_id": tenant_id,
            "since": since,
            "until": until,
        }
        return self._pages(get_page("/v1/allocations", AllocationView, **filters))

    def get(self, allocation_id: AllocationId) -> AllocationView:
        """One allocation."""
        return self._send(get(f"/v1/allocations/{allocation_id}", AllocationView))


class Usage(Noun):
    """`/v1/usage`."""

    def list(
        self,
        *,
        virtual_pool: VirtualPoolId | None = None,
        tenant_id: TenantId | None = None,
        pool_id: PoolId | None = None,
    ) -> Iterator[UsageLine]:
        """Use of each resource against the limits of its virtual pool."""
        filters = {"virtual_pool": virtual_pool, "tenant_id": tenant_id, "pool_id": pool_id}
        return self._pages(get_page("/v1/usage", UsageLine, **filters))


class Queues(Noun):
    """`/v1/queues`."""

    def list(self, virtual_pool: VirtualPoolId) -> Iterator[QueueEntry]:
        """The pending jobs of a virtual pool in order, with reasons."""
        return self._pages(get_page(f"/v1/queues/{virtual_pool}", QueueEntry))
