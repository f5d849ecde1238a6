"""What the autoscaler tells of its policies: how large each lets its pool grow."""

from millpond_contracts.bodies.scaling import ScalingPolicyView
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import views
from millpond_scheduler.store.changes import ChangeKind, note_changes


async def take_scaling_policy(unit: UnitOfWork, policy: ScalingPolicyView, *, deleted: bool) -> None:
    """Takes a policy; the leader hears of it as of a change of its pool."""
    if await views.write_scaling_policy(unit, policy, deleted=deleted):
        await note_changes(unit, ChangeKind.POOL, [policy.pool_id])
