"""Rows of anomalies: facts that were odd, for a person to look at."""

from collections.abc import Sequence

from millpond_billing.domain.timeline import Anomaly
from millpond_contracts.ids import AllocationId
from millpond_kernel.uow import UnitOfWork


async def note_anomalies(unit: UnitOfWork, found: Sequence[tuple[AllocationId, Anomaly]]) -> int:
    """Keeps each anomaly once; how many were new."""
    return await unit.execute(
        "INSERT INTO anomaly (allocation_id, kind, detail)"
        " SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
        [key for key, _ in found],
        [anomaly.kind.value for _, anomaly in found],
        [anomaly.detail for _, anomaly in found],
    )
