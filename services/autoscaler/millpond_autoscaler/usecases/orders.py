"""Brings every order one step further: outside calls between transactions, each step safe to repeat.

The row says what is intended; what the provider and the registry say is what is. After a crash the same look leads on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import asyncpg

from millpond_autoscaler.clients.registry import Refused, RegistryCalls
from millpond_autoscaler.domain.orders import pause_seconds
from millpond_autoscaler.providers.protocol import NodeProvider, ProviderFailed, ProviderOrder, StockOut
from millpond_autoscaler.store import orders, policies
from millpond_autoscaler.usecases.observing import is_emptied
from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.scaling import NodeOrderState, NodeTemplate
from millpond_contracts.events.autoscaler import (
    NodeOrderEvent,
    NodeOrderFailed,
    NodeProvisioned,
    NodeReleaseAnnounced,
    NodeReleased,
)
from millpond_contracts.ids import NodeId, NodeOrderId, PoolId
from millpond_kernel.clients import ServiceAway
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork

# What happened in the last second, as a join or the end of a drain, is told of a little later.
GRACE = timedelta(seconds=10)
# So often in vain, and a person is told: the machine costs until its provider takes it back.
ALARM_ATTEMPTS = 5


@dataclass(slots=True)
class OrderKeeper:
    """Advances orders. `stock_out_seconds` = how long a stock-out is remembered.

    `alarmed` = machines without an order that a person was told of already; it outlives the keeper.
    """

    database: Database
    registry: RegistryCalls
    provider: NodeProvider
    stock_out_seconds: float
    lease: Lease
    alarmed: set[NodeOrderId] = field(default_factory=set)

    async def advance(self, rows: Sequence[asyncpg.Record], now: datetime) -> None:
        """One look at every live order, and at machines that belong to none."""
        try:
            tags = await self.provider.list_tags()
        except ProviderFailed as error:
            log.warning("provider_away", error=str(error))
            tags = None
        for row in rows:
            if row["retry_at"] is not None and row["retry_at"] > now:
                continue
            try:
                await self._advance_one(row, tags, now)
            except (ServiceAway, Refused, ProviderFailed) as error:
                await self._try_later(row, now, str(error))
            except orders.OrderMoved:
                log.debug("order_moved", order=str(row["id"]))
        if tags:
            await self._release_orphans(tags - {NodeOrderId.of(row["id"]) for row in rows})

    async def _advance_one(self, row: asyncpg.Record, tags: frozenset[NodeOrderId] | None, now: datetime) -> None:
        state = NodeOrderState(row["state"])
        if state is NodeOrderState.REQUESTED:
            await self._request(row, tags, now)
        elif state is NodeOrderState.PROVISIONING:
            await self._await_node(row, now)
        elif state is NodeOrderState.JOINED:
            await self._look_after(row, now)
        elif state is NodeOrderState.RELEASING:
            await self._release(row, now)

    async def _request(self, row: asyncpg.Record, tags: frozenset[NodeOrderId] | None, now: datetime) -> None:
        """Asks the provider, unless it has the order already: somebody ended between asking and writing it down.

        Of a provider that is away (`tags` None) nobody can tell; a machine that it has after all is found as an orphan.
        """
        order_id, template = NodeOrderId.of(row["id"]), NodeTemplate.model_validate(row["template"])
        if tags is None or order_id not in tags:
            if now >= row["register_by"]:
                await self._fail(row, now, "the provider did not take the order in time")
                return
            if tags is None:
                return
            left = (row["register_by"] - now).total_seconds()
            token = await self.registry.create_join_token(order_id, PoolId.of(row["pool_id"]), left)
            try:
                await self.provider.create(ProviderOrder(order_id, row["number"], template, token))
            except StockOut as error:
                until = now + timedelta(seconds=self.stock_out_seconds)
                await self._fail(row, now, str(error), stock_out_until=until)
                return
        await self._enter(row, NodeOrderState.PROVISIONING, now, None, "the node: it has to join and be ready")

    async def _await_node(self, row: asyncpg.Record, now: datetime) -> None:
        if row["n_state"] == NodeState.READY:
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, self.lease)
                order = await orders.enter_state(unit, row, NodeOrderState.JOINED, now, node_id=row["n_id"])
                await policies.note_success(unit, row["policy_id"])
                unit.emit(NodeProvisioned(order=order))
        elif now >= row["register_by"] + GRACE:
            if row["n_id"] is None:
                await self._fail(row, now, "no node joined in time")
            else:
                await self._begin_release(row, now, has_failed=True)

    async def _look_after(self, row: asyncpg.Record, now: datetime) -> None:
        """Follows what others do to a joined node: one that was removed is given back, a forgotten cordon is lifted."""
        if row["n_state"] == NodeState.REMOVED:
            await self._begin_release(row, now)
        elif row["n_id"] is not None and CordonReason.SCALE_IN.value in (row["n_cordons"] or ()):
            await self.registry.keep(NodeId.of(row["n_id"]))

    async def _release(self, row: asyncpg.Record, now: datetime) -> None:
        """The handshake: drain, the scheduler's word, removal, and only then the machine is given back."""
        is_there = row["n_id"] is not None and row["n_state"] != NodeState.REMOVED
        if is_there and row["drain_generation"] is None:
            await self._drain(row)
            return
        if is_there:
            if not is_emptied(row):
                await self._drain_anew_if_lost(row, now)
                return
            await self.registry.remove(NodeId.of(row["n_id"]))
        await self.provider.release(NodeOrderId.of(row["id"]))
        await self._enter(row, NodeOrderState.RELEASED, now, NodeReleased, None)

    async def _drain(self, row: asyncpg.Record) -> None:
        """Asks for the drain, or takes up the one that was answered before this process could write it down."""
        drain = row["n_drain"]
        if drain is not None and drain["reason"] == CordonReason.SCALE_IN.value:
            generation, deadline = int(drain["generation"]), datetime.fromisoformat(drain["deadline"])
        else:
            started = await self.registry.drain(NodeId.of(row["n_id"]), row["drain_seconds"] or 0)
            generation, deadline = started.generation, started.deadline
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, self.lease)
            await orders.note_drain(unit, row, generation, deadline)

    async def _drain_anew_if_lost(self, row: asyncpg.Record, now: datetime) -> None:
        """A drain that somebody ended is asked for again once it is over its deadline: it always ends."""
        drain = row["n_drain"]
        is_lost = drain is None or drain["generation"] != row["drain_generation"]
        if is_lost and now >= row["drain_deadline"] + GRACE:
            started = await self.registry.drain(NodeId.of(row["n_id"]), row["drain_seconds"] or 0)
            async with self.database.begin(SYSTEM) as unit:
                await check_epoch(unit, self.lease)
                await orders.note_drain(unit, row, started.generation, started.deadline)

    async def _begin_release(self, row: asyncpg.Record, now: datetime, *, has_failed: bool = False) -> None:
        """Gives back at once a node that is of no use."""
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, self.lease)
            order = await orders.enter_state(
                unit,
                row,
                NodeOrderState.RELEASING,
                now,
                node_id=row["n_id"],
                drain_seconds=0,
                waits_for="the registry and the provider",
            )
            if has_failed:
                await _note_failure(unit, row, now)
            unit.emit(NodeReleaseAnnounced(order=order))

    async def _enter(
        self,
        row: asyncpg.Record,
        state: NodeOrderState,
        now: datetime,
        event: type[NodeOrderEvent] | None,
        waits_for: str | None,
    ) -> None:
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, self.lease)
            order = await orders.enter_state(unit, row, state, now, waits_for=waits_for)
            if event is not None:
                unit.emit(event(order=order))

    async def _fail(
        self, row: asyncpg.Record, now: datetime, why: str, *, stock_out_until: datetime | None = None
    ) -> None:
        """Ends the order, and has its policy wait before it orders again: longer each time."""
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, self.lease)
            order = await orders.enter_state(unit, row, NodeOrderState.FAILED, now, waits_for=why)
            await _note_failure(unit, row, now, stock_out_until)
            unit.emit(NodeOrderFailed(order=order))
        log.warning("node_order_failed", order=str(NodeOrderId.of(row["id"])), reason=why)

    async def _try_later(self, row: asyncpg.Record, now: datetime, why: str) -> None:
        pause = timedelta(seconds=pause_seconds(row["attempts"] + 1))
        async with self.database.begin(SYSTEM) as unit:
            await check_epoch(unit, self.lease)
            await orders.note_attempt(unit, row, now + pause, why[:300])
        if row["state"] == NodeOrderState.RELEASING and row["attempts"] + 1 == ALARM_ATTEMPTS:
            ALARMS.labels("autoscaler", "machine_not_given_back").inc()
            log.error("machine_not_given_back", order=str(NodeOrderId.of(row["id"])), reason=why)
        log.warning("node_order_waits", order=str(NodeOrderId.of(row["id"])), state=row["state"], reason=why)

    async def _release_orphans(self, tags: frozenset[NodeOrderId]) -> None:
        """Gives back machines whose order is over. One whose node still stands in the registry is a person's business.

        So is one that no order of this database names: it may belong to a database that was put back.
        """
        if not tags:
            return
        self.alarmed &= tags
        async with self.database.begin(SYSTEM) as unit:
            known = await orders.find_known(unit, list(tags))
        for tag in sorted(tags):
            if known.get(tag) is False:
                try:
                    await self.provider.release(tag)
                except ProviderFailed as error:
                    log.warning("provider_away", error=str(error))
                    return
                log.info("orphan_released", order=str(tag))
            elif tag not in self.alarmed:
                self.alarmed.add(tag)
                ALARMS.labels("autoscaler", "machine_without_order").inc()
                log.warning("machine_without_order", order=str(tag), node_is_there=known.get(tag, None))


async def _note_failure(
    unit: UnitOfWork, row: asyncpg.Record, now: datetime, stock_out_until: datetime | None = None
) -> None:
    """Has the order's policy wait before it orders again: longer each time. Orders that fail together count once."""
    state = await policies.read_state(unit, row["policy_id"])
    is_waiting = state["retry_at"] is not None and now < state["retry_at"]
    failures = state["failures"] + (0 if is_waiting else 1)
    retry_at = now + timedelta(seconds=pause_seconds(failures))
    await policies.note_failure(unit, row["policy_id"], failures, retry_at, stock_out_until)
