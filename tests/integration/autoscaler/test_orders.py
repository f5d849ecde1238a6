"""Orders one step at a time, on the service's own tables: a provider, a registry and nodes that are not as hoped."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from millpond_autoscaler.clients.registry import RegistryCalls
from millpond_autoscaler.loops.scaling import Scaling, ScalingTimes
from millpond_autoscaler.providers.protocol import NodeProvider, ProviderFailed, ProviderOrder
from millpond_autoscaler.providers.simulated import SimulatedNodes
from millpond_autoscaler.settings import Settings
from millpond_autoscaler.store import decisions, orders, policies, views
from millpond_autoscaler.usecases.deciding import list_candidates
from millpond_autoscaler.usecases.orders import GRACE, OrderKeeper
from millpond_contracts.bodies.nodes import CordonReason, DrainView, NodeState, NodeView
from millpond_contracts.bodies.pools import CapacityFigures, PoolCapacity
from millpond_contracts.bodies.scaling import (
    NODE_ORDER_LABEL,
    NodeOrderState,
    NodeOrderView,
    ScalingPolicySpec,
    ScalingPolicyView,
)
from millpond_contracts.ids import NodeId, NodeOrderId, PoolId, ScalingDecisionId, ScalingPolicyId
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, acquire_lease
from millpond_kernel.observability import ALARMS
from millpond_kernel.worker import WorkerKernel
from tests.integration.autoscaler.conftest import FLAVOR, RULES, TEMPLATE
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration


class AwayProvider:
    """A provider that does not answer."""

    async def create(self, order: ProviderOrder) -> None:
        raise ProviderFailed("away")

    async def release(self, order_id: NodeOrderId) -> None:
        raise ProviderFailed("away")

    async def list_tags(self) -> frozenset[NodeOrderId]:
        raise ProviderFailed("away")


@dataclass(slots=True)
class Desk:
    """One policy with its orders; `asked` = what the registry was asked."""

    database: Database
    lease: Lease
    policy: ScalingPolicyView
    folder: Path
    now: datetime
    asked: list[str]

    async def order(self, count: int = 1) -> list[NodeOrderView]:
        async with self.database.begin(SYSTEM) as unit:
            return await orders.insert_orders(unit, self.policy, ScalingDecisionId.new(), range(1, count + 1), self.now)

    async def tell_node(self, order: NodeOrderView, generation: int = 1, **changes: Any) -> NodeView:
        """What the registry says of the order's node."""
        state = changes.get("state", NodeState.READY)
        values: dict[str, Any] = {
            "node_id": order.node_id or NodeId.new(),
            "pool_id": self.policy.pool_id,
            "name": "node",
            "state": state,
            "state_since": self.now,
            "schedulable": state is NodeState.READY,
            "incarnation": 1,
            "boot_id": "boot-1",
            "arch": "x86_64",
            "cpu_milli": 64_000,
            "memory_mib": 262_144,
            "labels": {NODE_ORDER_LABEL: str(order.node_order_id)},
            "created_at": self.now,
            "generation": generation,
        }
        node = NodeView(**{**values, **changes})
        async with self.database.begin(SYSTEM) as unit:
            await views.write_node(unit, node)
        return node

    async def advance(self, after_seconds: float = 0, provider: NodeProvider | None = None) -> None:
        """One pass, so long after the orders were made."""
        registry = ServiceClient("registry", "http://registry", "", transport=httpx.MockTransport(self._registry))
        keeper = OrderKeeper(
            self.database, RegistryCalls(registry), provider or SimulatedNodes(self.folder), 120.0, self.lease
        )
        async with self.database.begin(SYSTEM) as unit:
            rows = await orders.list_live(unit)
        try:
            await keeper.advance(rows, self.now + timedelta(seconds=after_seconds))
        finally:
            await registry.close()

    async def read(self, order: NodeOrderView) -> NodeOrderView:
        async with self.database.begin(SYSTEM) as unit:
            row = await orders.find_order(unit, order.node_order_id)
        assert row is not None
        return orders.order_view(row)

    async def memory(self) -> tuple[int, float | None]:
        """(failures in a row, seconds for which the policy waits)."""
        async with self.database.begin(SYSTEM) as unit:
            state = await policies.read_state(unit, self.policy.scaling_policy_id)
        waits = None if state["retry_at"] is None else (state["retry_at"] - self.now).total_seconds()
        return state["failures"], waits

    def _registry(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path.rpartition('/')[2]}")
        return httpx.Response(409, json={"detail": "not now"})


@pytest.fixture
async def desk(migrated: MigratedDatabase, tmp_path: Path) -> AsyncIterator[Desk]:
    async with migrated.opened("autoscaler", pool_size=2) as database:
        spec = ScalingPolicySpec.model_validate(
            {"name": "growing", "pool_id": PoolId.new(), "flavor": FLAVOR, "template": TEMPLATE, "rules": RULES}
        )
        async with database.begin(SYSTEM) as unit:
            policy = await policies.insert_policy(unit, ScalingPolicyId.new(), spec)
        lease = await acquire_lease(database, "scaling", policy.scaling_policy_id, 600)
        assert lease is not None
        yield Desk(database, lease, policy, tmp_path / "orders", await database.now(), [])


async def _joined(desk: Desk) -> tuple[NodeOrderView, NodeView]:
    """An order whose node has joined."""
    (order,) = await desk.order()
    await SimulatedNodes(desk.folder).create(
        ProviderOrder(order.node_order_id, 1, desk.policy.template, "mpj_some_token")
    )
    await desk.advance()
    node = await desk.tell_node(order)
    await desk.advance()
    return await desk.read(order), node


async def _release(desk: Desk, order: NodeOrderView, drain_seconds: int) -> None:
    """The order as the decision to release leaves it, with the drain that the registry answered with."""
    async with desk.database.begin(SYSTEM) as unit:
        (row,) = await orders.list_live(unit)
        await orders.enter_state(unit, row, NodeOrderState.RELEASING, desk.now, drain_seconds=drain_seconds)
        await orders.note_drain(unit, row, 7, desk.now + timedelta(seconds=drain_seconds))


async def test_node_when_it_works_for_another_pool_then_it_is_no_candidate(desk: Desk) -> None:
    order, node = await _joined(desk)

    async def candidates() -> list[str]:
        async with desk.database.begin(SYSTEM) as unit:
            return [one.node for one in list_candidates(await orders.list_live(unit), {})]

    assert await candidates() == [str(node.node_id)]
    await desk.tell_node(order, 2, node_id=node.node_id, pool_id=PoolId.new())
    assert await candidates() == []
    await desk.tell_node(order, 3, node_id=node.node_id)
    assert await candidates() == [str(node.node_id)]


async def test_node_when_it_joined_and_is_not_ready_in_time_then_given_back_and_the_policy_waits(desk: Desk) -> None:
    (order,) = await desk.order()
    await SimulatedNodes(desk.folder).create(
        ProviderOrder(order.node_order_id, 1, desk.policy.template, "mpj_some_token")
    )
    await desk.advance()
    await desk.tell_node(order, state=NodeState.CHECKING)
    late = RULES["registration_seconds"] + GRACE.total_seconds()
    await desk.advance(late - 1)
    assert (await desk.read(order)).state is NodeOrderState.PROVISIONING
    await desk.advance(late)
    assert (await desk.read(order)).state is NodeOrderState.RELEASING
    assert await desk.memory() == (1, late + 5)


async def test_orders_when_they_fail_together_then_the_policy_waits_as_for_one(desk: Desk) -> None:
    made = await desk.order(4)
    await desk.advance(RULES["registration_seconds"], AwayProvider())
    assert {(await desk.read(order)).state for order in made} == {NodeOrderState.FAILED}
    assert await desk.memory() == (1, RULES["registration_seconds"] + 5)


async def test_order_when_the_provider_never_answers_then_it_fails_at_its_deadline(desk: Desk) -> None:
    (order,) = await desk.order()
    await desk.advance(RULES["registration_seconds"] - 1, AwayProvider())
    assert (await desk.read(order)).state is NodeOrderState.REQUESTED
    await desk.advance(RULES["registration_seconds"], AwayProvider())
    assert (await desk.read(order)).state is NodeOrderState.FAILED
    assert desk.asked == []


async def test_drain_when_its_event_is_late_or_somebody_ended_it_then_asked_for_anew_once_it_is_over(
    desk: Desk,
) -> None:
    order, node = await _joined(desk)
    await _release(desk, order, drain_seconds=0)
    # The registry has answered, and its event has not come yet.
    await desk.advance(1)
    assert desk.asked == []
    drain = DrainView(generation=7, deadline=desk.now, reason=CordonReason.SCALE_IN)
    await desk.tell_node(order, 7, node_id=node.node_id, drain=drain)
    await desk.advance(60)
    assert desk.asked == []
    # It was ended: without a new one the node would stay for ever.
    await desk.tell_node(order, 8, node_id=node.node_id)
    await desk.advance(60)
    assert desk.asked == ["POST drain"]


async def test_pass_when_no_node_may_go_then_not_every_one_reads_all_that_is_held(
    desk: Desk, migrated: MigratedDatabase
) -> None:
    order, node = await _joined(desk)
    await desk.tell_node(order, 2, node_id=node.node_id, schedulable=False, cordon_reasons=(CordonReason.OPERATOR,))
    free = CapacityFigures(
        flavor=FLAVOR, total=8000, unschedulable=0, allocated=0, reserved=0, fragmented=0, available=8000
    )
    told = PoolCapacity(pool_id=desk.policy.pool_id, as_of=desk.now, nodes={}, hosts=[], devices=[free], generation=1)
    async with desk.database.begin(SYSTEM) as unit:
        await views.write_capacity(unit, told)
        await policies.write_watch(unit, desk.policy.scaling_policy_id, desk.now - timedelta(hours=1), desk.now)
    asked: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if "snapshot" not in request.url.path:
            return httpx.Response(200, json={"head": 0, "events": []})
        await asyncio.sleep(0.5)
        return httpx.Response(200, json={"as_of_seq": 0, "items": [], "next": None})

    transport = httpx.MockTransport(answer)
    settings = Settings(database_url=migrated.url("autoscaler"), redis_url=migrated.redis_url)
    clients = {name: ServiceClient(name, "http://there", "", transport=transport) for name in views.CONSUMERS}
    kernel = WorkerKernel(settings, "autoscaler", desk.database, Redis(), clients)
    scaling = Scaling(kernel, desk.folder, ScalingTimes(2.0, 60.0, 10.0, 120.0))
    for second in range(3):
        await scaling.run_pass(desk.now + timedelta(seconds=second), desk.lease)
    async with desk.database.begin(SYSTEM) as unit:
        (decision,) = await decisions.list_decisions(unit, None, 10)
    assert decision["code"] == "no_candidate"
    assert sum("snapshot" in path for path in asked) == 1
    for client in clients.values():
        await client.close()


async def test_n5_release_when_the_provider_fails_for_long_then_it_stays_releasing_is_tried_again_and_alarms_once(
    desk: Desk,
) -> None:
    order, node = await _joined(desk)
    await _release(desk, order, drain_seconds=0)
    await desk.tell_node(order, 7, node_id=node.node_id, state=NodeState.REMOVED)
    alarm = ALARMS.labels("autoscaler", "machine_not_given_back")
    before, tries = alarm._value.get(), []
    for seconds in range(0, 1200, 30):
        await desk.advance(seconds, AwayProvider())
        stuck = await desk.read(order)
        assert stuck.state is NodeOrderState.RELEASING
        async with desk.database.begin(SYSTEM) as unit:
            tries.append((await orders.list_live(unit))[0]["attempts"])
    assert "away" in str(stuck.waits_for)
    assert 5 < tries[-1] < len(tries)  # again and again, but not at every pass
    assert alarm._value.get() == before + 1
    await desk.advance(3600)
    assert (await desk.read(order)).state is NodeOrderState.RELEASED
