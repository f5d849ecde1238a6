"""Doing to a stack what the plan says, and waiting until it is well again."""

import asyncio
import contextlib
import json
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import asyncpg
from redis.asyncio import Redis

from millpond.stack.launch import launch
from millpond.stack.processes import ProcessState, python_command
from millpond.stack.status import read_status
from tests.system.chaos.clocks import Clock
from tests.system.chaos.disks import fill
from tests.system.chaos.fleets import Fleet
from tests.system.chaos.load import ChaosLoad
from tests.system.chaos.plan import SERVICES, TARGETS, FaultKind, PlannedFault
from tests.system.stack import Stack

RECOVERY_SECONDS = 60.0
# How long a process is given to come by its fail point; one without work may not.
_FAIL_POINT_SECONDS = 4.0
_POLL_SECONDS = 0.05
# For so long without a part that is not needed for a grant, all grants must not have stopped.
_MAY_NOT_STALL_SECONDS = 2.0


@dataclass(slots=True)
class Stage:
    """What faults are done to.

    Attributes:
        fail_points: The folder that the stack's processes look into.
        clock: By which the services and this machine's agent go; each fleet has its own.
        parked: Events, as (publisher, seq), that no consumer can apply.
        done: How often each kind was done.
        drain_seconds: The longest that events took to all consumers after Valkey had been away.
        findings: What went wrong beyond what the checker sees: no recovery, or no grants where there must be.
    """

    stack: Stack
    fleets: Mapping[str, Fleet]
    load: ChaosLoad
    fail_points: Path
    clock: Clock
    parked: set[tuple[str, int]] = field(default_factory=set)
    done: dict[FaultKind, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    recovery_seconds: float = 0.0
    drain_seconds: float = 0.0

    async def inject(self, fault: PlannedFault) -> None:
        """Does it and counts it, unless the process never came by its fail point."""
        if await DOING[fault.kind](self, fault):
            self.done[fault.kind] = self.done.get(fault.kind, 0) + 1

    async def recover(self, after: str) -> float:
        """Waits until every process runs and every service acknowledged something that was asked for since now.

        Returns how many seconds that took; beyond a minute it is a finding.
        """
        began = time.monotonic()
        while True:
            away = [
                name
                for name, process in self.stack.processes().items()
                if process.state not in (ProcessState.READY, ProcessState.DONE)
            ]
            silent = set(SERVICES) - self.load.services_heard(began)
            passed = time.monotonic() - began
            if not away and not silent:
                self.recovery_seconds = max(self.recovery_seconds, passed)
                return passed
            if passed > RECOVERY_SECONDS:
                self.findings.append(f"{after}: after {passed:.0f} s {away} are away and {sorted(silent)} silent")
                return passed
            await asyncio.sleep(_POLL_SECONDS)

    def signal(self, target: str, number: signal.Signals) -> None:
        """Signals a process of the stack, or a fleet."""
        if target in self.fleets:
            self.fleets[target].signal(number)
        else:
            self.stack.signal(target, number)


async def _kill(stage: Stage, fault: PlannedFault) -> bool:
    if fault.target in stage.fleets:
        await asyncio.to_thread(stage.fleets[fault.target].restart)
    else:
        old = stage.stack.signal(fault.target, signal.SIGKILL)
        await _wait_until_gone(stage, fault.target, old)
    return True


async def _kill_all(stage: Stage, fault: PlannedFault) -> bool:
    """Every process but the engines, at once."""
    names, _ = TARGETS[FaultKind.KILL]
    mine = [name for name in names if name not in stage.fleets]
    for name in mine:
        stage.stack.signal(name, signal.SIGKILL)
    for fleet in stage.fleets.values():
        await asyncio.to_thread(fleet.restart)
    return True


async def _terminate(stage: Stage, fault: PlannedFault) -> bool:
    old = stage.stack.signal(fault.target, signal.SIGTERM)
    await _wait_until_gone(stage, fault.target, old, seconds=20)
    return True


async def _wait_until_gone(stage: Stage, name: str, pid: int, seconds: float = RECOVERY_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while stage.stack.processes()[name].pid == pid:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True


async def _freeze(stage: Stage, fault: PlannedFault) -> bool:
    began = time.monotonic()
    stage.signal(fault.target, signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.lasts_seconds)
    finally:
        stage.signal(fault.target, signal.SIGCONT)
    if fault.kind is FaultKind.FREEZE_VALKEY:
        _judge_without_valkey(stage, began, fault)
        await _judge_drain(stage)
    return True


def _judge_without_valkey(stage: Stage, began: float, fault: PlannedFault) -> None:
    heard = stage.load.services_heard(began)
    if fault.lasts_seconds >= _MAY_NOT_STALL_SECONDS and not {"scheduler", "quota", "registry"} <= heard:
        stage.findings.append(f"{fault.kind} of Valkey, {fault.lasts_seconds:.1f} s: only {sorted(heard)} answered")


async def _judge_drain(stage: Stage) -> None:
    """Waits until what was written meanwhile is on its streams and at every consumer; beyond a minute, a finding."""
    began = time.monotonic()
    connection = await asyncpg.connect(stage.stack.owner_url)
    try:
        async with Redis.from_url(stage.stack.redis_url, decode_responses=True) as redis:
            for service in SERVICES:
                newest = await connection.fetchval(f"SELECT max(id) FROM {service}.outbox")
                while not await _is_delivered(connection, redis, service, newest):
                    if time.monotonic() - began > RECOVERY_SECONDS:
                        stage.findings.append(f"what {service} wrote without Valkey was not delivered")
                        return
                    await asyncio.sleep(_POLL_SECONDS)
    finally:
        await connection.close()
    stage.drain_seconds = max(stage.drain_seconds, time.monotonic() - began)


async def _is_delivered(connection: asyncpg.Connection, redis: Redis, service: str, row: int | None) -> bool:
    if row is None:
        return True
    seq = await connection.fetchval(f"SELECT seq FROM {service}.outbox WHERE id = $1", row)
    if seq is None:
        return False
    newest = await redis.xrevrange(f"millpond:{service}", count=1)
    if not newest or int(str(newest[0][0]).split("-")[0]) < seq:
        return False
    cursors = [
        await connection.fetchval(f"SELECT min(seq) FROM {other}.cursor WHERE publisher = $1", service)
        for other in SERVICES
    ]
    return all(cursor is None or cursor >= seq for cursor in cursors)


async def _die_at_point(stage: Stage, fault: PlannedFault) -> bool:
    pid = stage.stack.pid(fault.target)
    armed = stage.fail_points / f"{pid}.{fault.kind}"
    armed.touch(mode=0o644)
    try:
        return await _wait_until_gone(stage, fault.target, pid, _FAIL_POINT_SECONDS)
    finally:
        armed.unlink()


async def _end_backends(stage: Stage, fault: PlannedFault) -> bool:
    """Some of the services' connections end, whatever they are at."""
    chance = random.Random(fault.draw)
    connection = await asyncpg.connect(stage.stack.owner_url)
    try:
        rows = await connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " ORDER BY pid"
        )
        for row in rows:
            if chance.random() < 0.5:
                await connection.execute("SELECT pg_terminate_backend($1)", row["pid"])
    finally:
        await connection.close()
    return True


async def _empty_valkey(stage: Stage, fault: PlannedFault) -> bool:
    async with Redis.from_url(stage.stack.redis_url) as redis:
        await redis.flushall()
    return True


async def _delete_stream(stage: Stage, fault: PlannedFault) -> bool:
    async with Redis.from_url(stage.stack.redis_url) as redis:
        await redis.delete(f"millpond:{fault.target}")
    return True


async def _trouble_wire(stage: Stage, fault: PlannedFault) -> bool:
    """Requests between nodes and the gateway are doubled, delayed, answered in vain, or not passed at all."""
    wire = stage.fleets[fault.target].wire
    name, value = {
        FaultKind.DOUBLE_REQUESTS: ("doubled", 0.5),
        FaultKind.DELAY_REQUESTS: ("delayed", 0.3),
        FaultKind.LOSE_ANSWERS: ("lost_answers", 0.3),
        FaultKind.PARTITION_NODES: ("is_cut", True),
    }[fault.kind]
    before = getattr(wire, name)
    setattr(wire, name, value)
    try:
        await asyncio.sleep(fault.lasts_seconds)
    finally:
        setattr(wire, name, before)
    return True


async def _run_second_workers(stage: Stage, fault: PlannedFault) -> bool:
    """Every relay, consumer, loop and the scheduler's leader are there twice for a while; the copies are then killed.

    Waits first until all of them are at work, by their connections to the database and to Redis.
    """
    stack = stage.stack
    copies = launch(
        python_command("millpond_kernel.serve", "worker", "--services", ",".join(SERVICES)),
        environment={"PATH": "/usr/bin:/bin", "HOME": str(stack.base), **stack.secrets},
        folder=stack.base,
        log_file=stack.paths.logs / "second-workers.log",
    )
    try:
        deadline = time.monotonic() + RECOVERY_SECONDS
        while _count_sockets(copies.pid) < 2 * len(SERVICES):
            if copies.poll() is not None or time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.sleep(fault.lasts_seconds)
        return copies.poll() is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            copies.kill()
        await asyncio.to_thread(copies.wait, 10)


def _count_sockets(pid: int) -> int:
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += str(descriptor.readlink()).startswith("socket:")
    return found


async def _jump(stage: Stage, fault: PlannedFault) -> bool:
    """Wall clocks of the services, or of the nodes, jump and later jump back; the database's stays as it is."""
    clocks = [fleet.clock for fleet in stage.fleets.values()]
    if fault.kind is FaultKind.JUMP_SERVICES:
        clocks = [stage.clock]
    for clock in clocks:
        clock.jump(int(fault.target))
    try:
        await asyncio.sleep(fault.lasts_seconds)
    finally:
        for clock in clocks:
            clock.jump(0)
    return True


async def _fill_disk(stage: Stage, fault: PlannedFault) -> bool:
    """PostgreSQL, or Valkey with its append-only file, cannot write what needs new room; room is made again later."""
    status = read_status(stage.stack.paths.status_file)
    assert status is not None
    began = time.monotonic()
    ballast = await asyncio.to_thread(fill, stage.stack.paths, fault.target, status.supervisor_pid)
    try:
        await asyncio.sleep(fault.lasts_seconds)
    finally:
        ballast.unlink()
    if fault.target == "valkey":
        _judge_without_valkey(stage, began, fault)
        await _judge_drain(stage)
    return True


async def _poison_event(stage: Stage, fault: PlannedFault) -> bool:
    """An event that every consumer fails at: it is parked, and what follows flows on."""
    connection = await asyncpg.connect(stage.stack.owner_url)
    try:
        row = await connection.fetchval(
            "INSERT INTO registry.outbox (event_id, type, subject, generation, body, happened_at)"
            " SELECT $1, type, 'poison:' || $2, 1, $3::jsonb, clock_timestamp() FROM registry.outbox"
            " WHERE type LIKE 'registry.pool_%' ORDER BY id LIMIT 1 RETURNING id",
            uuid4(),
            uuid4().hex,
            json.dumps({"pool": "none"}),
        )
        seq = None
        while seq is None:
            seq = await connection.fetchval("SELECT seq FROM registry.outbox WHERE id = $1", row)
            await asyncio.sleep(_POLL_SECONDS)
        stage.parked.add(("registry", seq))
    finally:
        await connection.close()
    return True


DOING: Mapping[FaultKind, Callable[[Stage, PlannedFault], Awaitable[bool]]] = {
    FaultKind.KILL: _kill,
    FaultKind.KILL_ALL: _kill_all,
    FaultKind.TERMINATE: _terminate,
    FaultKind.FREEZE: _freeze,
    FaultKind.BEFORE_COMMIT: _die_at_point,
    FaultKind.AFTER_COMMIT: _die_at_point,
    FaultKind.BEFORE_PUBLISH: _die_at_point,
    FaultKind.AFTER_PUBLISH: _die_at_point,
    FaultKind.INSIDE_APPLY: _die_at_point,
    FaultKind.AFTER_APPLY: _die_at_point,
    FaultKind.KILL_POSTGRES: _kill,
    FaultKind.END_BACKENDS: _end_backends,
    FaultKind.KILL_VALKEY: _kill,
    FaultKind.EMPTY_VALKEY: _empty_valkey,
    FaultKind.DELETE_STREAM: _delete_stream,
    FaultKind.FREEZE_VALKEY: _freeze,
    FaultKind.DOUBLE_REQUESTS: _trouble_wire,
    FaultKind.DELAY_REQUESTS: _trouble_wire,
    FaultKind.LOSE_ANSWERS: _trouble_wire,
    FaultKind.PARTITION_NODES: _trouble_wire,
    FaultKind.FREEZE_NODES: _freeze,
    FaultKind.SECOND_WORKERS: _run_second_workers,
    FaultKind.JUMP_SERVICES: _jump,
    FaultKind.JUMP_NODES: _jump,
    FaultKind.FILL_DISK: _fill_disk,
    FaultKind.POISON_EVENT: _poison_event,
}
