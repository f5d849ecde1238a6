"""Limits that hold work back, as the scheduler tells them: one alert per crossing."""

from millpond_contracts.events import Envelope
from millpond_contracts.events.scheduler import AdmissionChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_quota.usecases.virtual_pools import note_admission


async def _on_admission(unit: UnitOfWork, envelope: Envelope, event: AdmissionChanged) -> None:
    await note_admission(unit, event, envelope.happened_at)


def alerts_consumer() -> Consumer:
    """Follows the scheduler's admission changes."""
    return Consumer("alerts", "scheduler", {AdmissionChanged: _on_admission})
