"""Follows the autoscaler: how large its policies let pools grow, for explanations alone."""

from collections.abc import Callable, Sequence
from typing import Any

from millpond_contracts.bodies.scaling import ScalingPolicyView
from millpond_contracts.events import Envelope
from millpond_contracts.events.autoscaler import ScalingPolicyChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.usecases.growth import take_scaling_policy


def autoscaler_consumer(after_batch: Callable[[], None]) -> Consumer:
    """The consumer of the autoscaler's events; `after_batch` wakes the leader of this process."""
    return Consumer(
        name="growth",
        publisher="autoscaler",
        handlers={ScalingPolicyChanged: _on_policy},
        snapshots={"scaling-policies": _load_policies},
        after_batch=after_batch,
        clear=_clear,
    )


async def _clear(unit: UnitOfWork) -> None:
    await unit.execute("DELETE FROM scaling_policy_view")


async def _on_policy(unit: UnitOfWork, envelope: Envelope, event: ScalingPolicyChanged) -> None:
    await take_scaling_policy(unit, event.policy, deleted=event.deleted)


async def _load_policies(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_scaling_policy(unit, ScalingPolicyView.model_validate(item), deleted=False)
