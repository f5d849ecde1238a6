"""What an agent reports of its node: inventory, readiness, signs of life."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import asyncpg

from millpond_contracts.bodies.nodes import (
    CordonReason,
    Heartbeat,
    HeartbeatAnswer,
    InventoryReport,
    NodeState,
    ReadyReport,
)
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import (
    DeviceHealthChanged,
    InventoryChanged,
    NodeBecameReady,
    NodeRecovered,
    NodeSuspected,
)
from millpond_contracts.ids import NodeId, PoolId
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.devices import KnownDevice, changed_health, merge_devices
from millpond_registry.domain.nodes import Node, enter_state, node_view
from millpond_registry.store import heartbeats, nodes
from millpond_registry.store.clock import read_clock
from millpond_registry.store.devices import devices_of, put_devices
from millpond_registry.usecases.flavors import resolve_flavors
from millpond_registry.usecases.joins import check_identities
from millpond_registry.usecases.nodes import save_node
from millpond_registry.usecases.sessions import find_own_node, lock_own_node

SUSPECTS_PER_PASS = 500


async def take_inventory(unit: UnitOfWork, caller: Principal, report: InventoryReport) -> None:
    """Replaces what is known of the node; a report that is not newer than the stored one changes nothing.

    Raises:
        ProblemError: 409 when a newer session exists, 422 when a device is named twice.
    """
    check_identities(report.inventory)
    node = await lock_own_node(unit, caller)
    if node.sequence is not None and report.sequence <= node.sequence:
        return
    now = await read_clock(unit)
    before = await devices_of(unit, node.id)
    names = await resolve_flavors(unit, report.inventory.devices)
    after = merge_devices(before, report.inventory.devices, lambda device: names[device.identity], now)
    await put_devices(unit, node.id, after)
    await _save_inventory(
        unit, node, replace(node, inventory=report.inventory, sequence=report.sequence), before, after
    )


async def _save_inventory(
    unit: UnitOfWork, node: Node, reported: Node, before: list[KnownDevice], after: list[KnownDevice]
) -> None:
    """Writes the inventory and tells only what others can see of it: an event each for hardware and for health."""
    ill = changed_health(before, after)
    told = {device.id: (device.health, device.health_reason) for device in before}
    same_health = [
        replace(device, health=told[device.id][0], health_reason=told[device.id][1]) if device.id in told else device
        for device in after
    ]
    hardware_changed = node_view(node, before) != node_view(reported, same_health)
    if hardware_changed:
        await save_node(unit, node, reported, InventoryChanged, devices=after, with_inventory=True)
        node = replace(reported, generation=node.generation + 1)
    if ill:
        await save_node(unit, node, reported, DeviceHealthChanged, devices=after, with_inventory=True, device_ids=ill)
    if not hardware_changed and not ill:
        await nodes.update_node(unit, node, reported, with_inventory=True)


async def report_ready(unit: UnitOfWork, caller: Principal, report: ReadyReport) -> None:
    """Opens the node for work, unless a cordon reason stands against it; a node that is ready stays so.

    Raises:
        ProblemError: 409 before the inventory of this session arrived, or when a newer session exists.
    """
    node = await lock_own_node(unit, caller)
    await heartbeats.touch(unit, node.id)
    if node.state is NodeState.READY:
        return
    if node.sequence is None:
        raise ProblemError(
            ErrorCode.NODE_STATE, f"Node {node.name} must push the inventory of this session before it reports ready."
        )
    event = NodeRecovered if node.state is NodeState.UNREACHABLE else NodeBecameReady
    await save_node(unit, node, enter_state(node, NodeState.READY, await read_clock(unit)), event)


@dataclass(frozen=True, slots=True)
class Beat:
    """A noted heartbeat: when, in which pool, in which state the node was then, and the answer's facts."""

    at: datetime
    pool_id: PoolId
    state: NodeState
    cordons: tuple[CordonReason, ...]
    inventory_sequence: int | None
    unreachable_after_seconds: int

    def answer(self, heartbeat: Heartbeat, state: NodeState, heartbeat_seconds: int) -> HeartbeatAnswer:
        """What the agent hears. It must beat three times within the silence that its pool allows."""
        return HeartbeatAnswer(
            server_at=self.at,
            send_inventory=self.inventory_sequence != heartbeat.inventory_sequence,
            state=state,
            cordon_reasons=self.cordons,
            heartbeat_seconds=heartbeat_interval(self.unreachable_after_seconds, heartbeat_seconds),
            takes_series=True,
        )


def heartbeat_interval(unreachable_after_seconds: int, wanted_seconds: int) -> int:
    """Seconds between heartbeats: the wanted ones, but three within the silence that a pool allows."""
    return max(1, min(wanted_seconds, unreachable_after_seconds // 3))


async def note_heartbeat(unit: UnitOfWork, caller: Principal, heartbeat: Heartbeat) -> Beat:
    """Notes a sign of life in one statement; neither the node's row nor the outbox is touched.

    Raises:
        ProblemError: 404 after the node's removal, 409 when a newer session exists.
    """
    assert caller.node_id is not None
    assert caller.incarnation is not None
    row = await heartbeats.beat(unit, caller.node_id, caller.incarnation, is_durable=bool(heartbeat.conditions))
    if row is None:
        await find_own_node(unit, caller)
        raise ProblemError(ErrorCode.NODE_SUPERSEDED, f"Session {caller.incarnation} is not the node's newest.")
    if heartbeat.conditions:
        await heartbeats.put_conditions(unit, caller.node_id, heartbeat.conditions)
    return _beat(row)


async def note_heartbeats(unit: UnitOfWork, sessions: Sequence[heartbeats.SessionOf]) -> list[Beat | None]:
    """Notes signs of life of many nodes, without conditions, in one statement.

    None for those that have to be noted alone: `note_heartbeat` waits for a row that is kept, and tells what is wrong.
    """
    rows = await heartbeats.beat_together(unit, sessions)
    return [_beat(row) if (row := rows.get(session)) is not None else None for session in sessions]


def _beat(row: asyncpg.Record) -> Beat:
    return Beat(
        at=row["at"],
        pool_id=PoolId.of(row["pool_id"]),
        state=NodeState(row["state"]),
        cordons=tuple(CordonReason(reason) for reason in row["cordon_reasons"]),
        inventory_sequence=row["inventory_sequence"],
        unreachable_after_seconds=row["unreachable_after_seconds"],
    )


async def recover_node(unit: UnitOfWork, caller: Principal) -> NodeState:
    """Returns a node that was silent to work: it speaks again. Tells its state."""
    node = await lock_own_node(unit, caller)
    if node.state is not NodeState.UNREACHABLE:
        return node.state
    await save_node(unit, node, enter_state(node, NodeState.READY, await read_clock(unit)), NodeRecovered)
    return NodeState.READY


async def list_suspects(unit: UnitOfWork, listening_since: datetime) -> list[NodeId]:
    """Ready nodes that fell silent. Silence counts from `listening_since`: before, nobody listened.

    However many they are: no new work belongs there. Whether their work is given up is the scheduler's to say.
    """
    return await heartbeats.list_silent(unit, listening_since, SUSPECTS_PER_PASS)


async def suspect_node(unit: UnitOfWork, node_id: NodeId, now: datetime) -> None:
    """Takes a silent node out of placing; what runs there goes on."""
    node = await nodes.lock_node(unit, node_id)
    if node is not None and node.state is NodeState.READY:
        await save_node(unit, node, enter_state(node, NodeState.UNREACHABLE, now), NodeSuspected)
