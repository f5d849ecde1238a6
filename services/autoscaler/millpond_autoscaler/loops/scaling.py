"""The loop that decides and follows through: 1 orders go one step on, 2 every policy is decided on, 3 what was intended
is begun at the next pass.

Without policies and orders a pass is one short transaction.
"""

import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path

import asyncpg

from millpond_autoscaler.clients.following import read_held, why_behind
from millpond_autoscaler.clients.registry import RegistryCalls
from millpond_autoscaler.domain.forecasts import Forecast, NoForecast
from millpond_autoscaler.domain.situation import Situation
from millpond_autoscaler.providers.simulated import SimulatedNodes
from millpond_autoscaler.store import orders, policies, views
from millpond_autoscaler.usecases.deciding import (
    Decision,
    apply_decision,
    is_news,
    list_candidates,
    make_decision,
    watch,
)
from millpond_autoscaler.usecases.observing import ObservingTimes, observe
from millpond_autoscaler.usecases.orders import OrderKeeper
from millpond_contracts.bodies.scaling import DemandShape, ScalingAction, ScalingPolicyView
from millpond_contracts.ids import NodeOrderId, ScalingPolicyId
from millpond_kernel.clients import ServiceAway
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.loops import Loop
from millpond_kernel.worker import WorkerKernel

# Who holds what is read from every live allocation: a policy spends at most a twentieth of the time on asking.
RESTS_PER_ASKING = 20


@dataclass(frozen=True, slots=True)
class ScalingTimes:
    """How often and how patiently; all in seconds."""

    decide_seconds: float
    signal_fresh_seconds: float
    settle_seconds: float
    stock_out_seconds: float


@dataclass(slots=True)
class Scaling:
    """One pass after the other, by the holder of the lease.

    `alarmed` is the `OrderKeeper`'s; `asks_at` = when on the process's clock a policy may ask again who holds what.
    """

    kernel: WorkerKernel
    folder: Path
    times: ScalingTimes
    forecast: Forecast = field(default_factory=NoForecast)
    alarmed: set[NodeOrderId] = field(default_factory=set)
    asks_at: dict[ScalingPolicyId, float] = field(default_factory=dict)

    async def run_pass(self, now: datetime, lease: Lease) -> None:
        """Orders first, so that a decision sees what has come."""
        async with self.kernel.database.begin(SYSTEM) as unit:
            live = await orders.list_live(unit)
            enabled = await policies.list_enabled(unit)
        if live or self.folder.exists():
            await self._keeper(lease).advance(live, now)
        for _, together in groupby(enabled, lambda policy: policy.pool_id):
            await self._decide_pool(list(together), now, lease)

    def _keeper(self, lease: Lease) -> OrderKeeper:
        return OrderKeeper(
            self.kernel.database,
            RegistryCalls(self.kernel.clients["registry"]),
            SimulatedNodes(self.folder),
            self.times.stock_out_seconds,
            lease,
            self.alarmed,
        )

    async def _decide_pool(self, of_pool: list[ScalingPolicyView], now: datetime, lease: Lease) -> None:
        """The policies of one pool in their order: what one serves is not the next one's demand."""
        async with self.kernel.database.begin(SYSTEM) as unit:
            demand = await views.read_demand(unit, of_pool[0].pool_id)
        left = () if demand is None else demand.shapes
        for policy in of_pool:
            left = await self._decide(policy, left, now, lease)

    async def _decide(
        self, policy: ScalingPolicyView, demand: tuple[DemandShape, ...], now: datetime, lease: Lease
    ) -> tuple[DemandShape, ...]:
        times = ObservingTimes(self.times.signal_fresh_seconds, self.times.settle_seconds)
        async with self.kernel.database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            seen = await observe(unit, policy, demand, self.forecast, times, now)
            situation, told = await watch(unit, policy, seen)
            rows = await orders.list_live(unit, policy.scaling_policy_id)
        decision = make_decision(policy, situation)
        if decision.verdict.action is ScalingAction.RELEASE_NODES:
            began = time.monotonic()
            if began < self.asks_at.get(policy.scaling_policy_id, 0.0):
                return decision.left
            decision = await self._decide_release(policy, situation, rows)
            ended = time.monotonic()
            self.asks_at[policy.scaling_policy_id] = ended + RESTS_PER_ASKING * (ended - began)
        if is_news(decision, told):
            async with self.kernel.database.begin(SYSTEM) as unit:
                await check_epoch(unit, lease)
                await apply_decision(unit, policy, decision)
        return decision.left

    async def _decide_release(
        self, policy: ScalingPolicyView, situation: Situation, rows: list[asyncpg.Record]
    ) -> Decision:
        """Before anything leaves: are the views as new as they seem, and which nodes hold what?"""
        clients = self.kernel.clients
        behind = await why_behind(self.kernel.database, clients, views.CONSUMERS)
        held = {}
        if behind is None:
            try:
                held = await read_held(clients["scheduler"], policy.pool_id)
            except ServiceAway as error:
                behind = str(error)
        candidates = () if behind is not None else list_candidates(rows, held)
        return make_decision(policy, replace(situation, behind=behind, candidates=candidates))


def scaling_loop(kernel: WorkerKernel, folder: Path, times: ScalingTimes) -> Loop:
    """The loop `scaling`; orders for simulated nodes lie in `folder`."""
    return Loop(
        "scaling",
        times.decide_seconds,
        run_leased_pass=Scaling(kernel, folder, times).run_pass,
        lease_seconds=max(30.0, 3 * times.decide_seconds),
    )
