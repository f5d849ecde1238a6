"""What one policy's decision is drawn from, read from the service's own tables in one transaction."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from millpond_autoscaler.domain.forecasts import Forecast
from millpond_autoscaler.domain.situation import Situation
from millpond_autoscaler.store import orders, policies, signals, views
from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.scaling import DemandShape, NodeOrderState, ScalingPolicyView
from millpond_kernel.uow import UnitOfWork


@dataclass(frozen=True, slots=True)
class ObservingTimes:
    """How fresh a signal must be, and how long after its arrival a node may not be known to who told the demand."""

    signal_seconds: float = 60.0
    settle_seconds: float = 10.0


async def observe(
    unit: UnitOfWork,
    policy: ScalingPolicyView,
    demand: tuple[DemandShape, ...],
    forecast: Forecast,
    times: ObservingTimes,
    now: datetime,
) -> Situation:
    """The policy's situation now; `demand` is what other policies of the pool have left."""
    held_milli, schedulable_milli = await _read_capacity(unit, policy)
    state = await policies.read_state(unit, policy.scaling_policy_id)
    rows = await orders.list_live(unit, policy.scaling_policy_id)
    joined = [row for row in rows if row["state"] == NodeOrderState.JOINED and row["n_state"] != NodeState.REMOVED]
    releasing = [row for row in rows if row["state"] == NodeOrderState.RELEASING]
    settled = now - timedelta(seconds=times.settle_seconds)
    expected = await views.count_devices(unit, policy.pool_id, policy.flavor)
    since = now - timedelta(seconds=times.signal_seconds)
    return Situation(
        now=now,
        held_milli=held_milli,
        schedulable_milli=schedulable_milli,
        demand=demand,
        nodes=len(joined),
        ordered=sum(row["state"] in (NodeOrderState.REQUESTED, NodeOrderState.PROVISIONING) for row in rows),
        # Joined, or kept when it was to leave: in both cases what waits may not have been told of its room.
        settling=sum(row["state_since"] > settled for row in joined),
        releasing=len(releasing),
        cancellable=sum(is_cancellable(row) for row in releasing),
        foreign=sum(policy.flavor not in (row["n_flavors"] or {}).values() for row in joined),
        signals=await signals.read_signals(unit, policy.pool_id, policy.flavor, since, expected),
        forecast=forecast.predict((), now, policy.rules.safety_window_seconds),
        low_since=state["low_since"],
        last_out_at=state["last_out_at"],
        last_in_at=state["last_in_at"],
        retry_at=state["retry_at"],
        stock_out_until=state["stock_out_until"],
    )


async def _read_capacity(unit: UnitOfWork, policy: ScalingPolicyView) -> tuple[int | None, int | None]:
    """What is held, and what takes work or is held; None while the registry has not counted the pool's nodes."""
    capacity = await views.read_capacity(unit, policy.pool_id)
    if capacity is None:
        # Of a pool that never had a node no figures are told: it has nothing.
        return (None, None) if await views.has_nodes(unit, policy.pool_id) else (0, 0)
    for figures in capacity.devices:
        if figures.flavor == policy.flavor:
            return figures.allocated, figures.total - figures.unschedulable
    return 0, 0


def is_emptied(row: asyncpg.Record) -> bool:
    """Whether the scheduler said of this very drain that nothing is left."""
    drain: dict[str, Any] | None = row["n_drain"]
    return (
        drain is not None
        and row["drain_generation"] is not None
        and drain["generation"] == row["drain_generation"]
        and drain["emptied_at"] is not None
    )


def is_cancellable(row: asyncpg.Record) -> bool:
    """Whether a node that is to leave can still be kept: it was ready, is there, and nothing was given back yet."""
    return row["joined_at"] is not None and row["n_state"] == NodeState.READY and not is_emptied(row)


def may_be_released(row: asyncpg.Record) -> bool:
    """Whether a joined node may be chosen: it takes the pool's work, and nobody else has closed or drains it."""
    cordons = set(row["n_cordons"] or ())
    return (
        row["state"] == NodeOrderState.JOINED
        and row["n_state"] == NodeState.READY
        # One that is lent, or was moved by an operator, works for another pool.
        and row["n_pool_id"] == row["pool_id"]
        and not cordons - {CordonReason.SCALE_IN.value}
    )
