"""What is held and what waits: allocations, use against limits, queues."""

from collections.abc import Iterator

from millpond.client.calls import get, get_page
from millpond.client.nouns import Noun
from millpond_contracts.bodies.jobs import AllocationState, AllocationView, QueueEntry, UsageLine
from millpond_contracts.ids import AllocationId, JobId, NodeId, VirtualPoolId


class Allocations(Noun):
    """`/v1/allocations`."""

    def list(
        self,
        *,
        job_id: JobId | None = None,
        node_id: NodeId | None = None,
        virtual_pool: VirtualPoolId | None = None,
        state: AllocationState | None = None,
    ) -> Iterator[AllocationView]:
        """What tasks hold or held, oldest first."""
        filters = {"job_id": job_id, "node_id": node_id, "virtual_pool": virtual_pool, "state": state}
        return self._pages(get_page("/v1/allocations", AllocationView, **filters))

    def get(self, allocation_id: AllocationId) -> AllocationView:
        """One allocation."""
        return self._send(get(f"/v1/allocations/{allocation_id}", AllocationView))


class Usage(Noun):
    """`/v1/usage`."""

    def list(self, *, virtual_pool: VirtualPoolId | None = None) -> Iterator[UsageLine]:
        """Use of each resource against the limits of its virtual pool."""
        return self._pages(get_page("/v1/usage", UsageLine, virtual_pool=virtual_pool))


class Queues(Noun):
    """`/v1/queues`."""

    def list(self, virtual_pool: VirtualPoolId) -> Iterator[QueueEntry]:
        """The pending jobs of a virtual pool in order, with reasons."""
        return self._pages(get_page(f"/v1/queues/{virtual_pool}", QueueEntry))
