"""One task from its assignment, or from the run folder that an earlier agent left, until nothing of it remains here.

Order matters for kills: nothing is reported before the process was launched, so that an assignment whose agent died
in between is given again; once launched, everything that is reported can be read again from the run folder.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from millpond_contracts.bodies.allocations import DeviceShare, EndReason
from millpond_contracts.bodies.groups import SimulateSpec
from millpond_contracts.bodies.work import Assignment, HeldAllocation, ReportKind
from millpond_contracts.ids import AllocationId
from millpond_contracts.resources import DeviceHealth, NodeInventory
from millpond_node_agent.control_plane import ControlPlane
from millpond_node_agent.lease import Lease
from millpond_node_agent.logs import LogPusher
from millpond_node_agent.observability import log
from millpond_node_agent.partitions import Partitions
from millpond_node_agent.pausing import finish, wait_within
from millpond_node_agent.report import Reporter, end_reason, exit_number
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.protocol import (
    DeviceGrant,
    EndWatch,
    GroupNotEmpty,
    PartitionGrant,
    RefusalCode,
    RefusedTask,
    Run,
    RunNotFound,
    Runtime,
    Simulation,
    TaskSpec,
    TaskState,
    TaskStatus,
    TaskTerms,
)
from millpond_node_agent.spool import Spool
from millpond_node_agent.stops import StopReasons

_LOOK_SECONDS = 2.0  # for what no event tells, such as a launcher that was killed
_EMPTYING_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5)
_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Tools:
    """What following a task needs, shared by all tasks.

    `inventory` gives the machine's newest one, None before the first; `start_slots` bounds the starts at one time.
    """

    runtime: Runtime
    partitions: Partitions
    plane: ControlPlane
    spool: Spool
    reporter: Reporter
    stops: StopReasons
    lease: Lease
    inventory: Callable[[], NodeInventory | None]
    start_slots: asyncio.Semaphore
    log_push_seconds: float


class Follower:
    """Follows one task.

    `told` is set once the scheduler will be told of it, so it need not be assigned again; `is_held` until the scheduler
    knows that it is over.
    """

    def __init__(self, tools: Tools, run: Run, assignment: Assignment | None = None) -> None:
        """Follow an assignment, or the run of an earlier agent when there is none."""
        self._tools = tools
        self._run = run
        self._assignment = assignment
        self.allocation_id = AllocationId.parse(run.allocation_id)
        self.epoch = run.terms.epoch
        self.told = asyncio.Event()
        self.is_held = True
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._told_active = False
        self._told_stopping = False
        self._lost: str | None = None
        self._kill_ms: int | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> HeldAllocation:
        """How a poll names it."""
        return HeldAllocation(allocation_id=self.allocation_id, epoch=self.epoch)

    def raise_epoch(self, epoch: int) -> None:
        """The scheduler speaks of this allocation under a higher epoch from now on."""
        self.epoch = max(self.epoch, epoch)

    def order_stop(self, grace_seconds: float, reason: EndReason) -> None:
        """Stop it, by force after the grace; a later order can only shorten the grace. The first reason stays."""
        kill_ms = monotonic_ms() + int(grace_seconds * 1000)
        if self._kill_ms is not None and self._kill_ms <= kill_ms:
            return
        self._tools.stops.note(self._run.allocation_id, reason)
        self._kill_ms = kill_ms
        self._wake.set()

    def fence(self, kill_ms: int) -> None:
        """The lease ran out: be dead at `kill_ms`, whatever grace the task has."""
        left = max(0.0, (kill_ms - monotonic_ms()) / 1000)
        self.order_stop(min(left, self._run.terms.stop_grace_seconds), EndReason.NODE_LOST)

    def stop_by_own_grace(self, reason: EndReason, longest_seconds: float) -> None:
        """Stop it with the grace that its job asked for, within a bound."""
        self.order_stop(min(self._run.terms.stop_grace_seconds, longest_seconds), reason)

    async def follow(self) -> None:
        """Returns when the task is over, told to the scheduler, and removed here."""
        while True:
            try:
                if self._assignment is None or await self._start(self._assignment):
                    await self._see_through()
                return
            except RunNotFound:
                log.error("run_vanished", allocation_id=str(self.allocation_id))
                return
            except Exception as error:
                log.error("following_failed", allocation_id=str(self.allocation_id), exc_info=error)
                await asyncio.sleep(_RETRY_SECONDS)

    # Starting

    async def _start(self, assignment: Assignment) -> bool:
        async with self._tools.start_slots:
            if self._kill_ms is not None:
                await self._tell(ReportKind.RELEASED, monotonic_ms(), reason=self._ordered() or EndReason.CANCELLED)
                self._tools.stops.forget(self._run.allocation_id)
                return False
            if not self._tools.lease.is_valid:
                return False  # not told: the scheduler gives it again, here or elsewhere
            inventory = self._tools.inventory()
            if assignment.devices and inventory is None:
                return False  # not told: it is given again, and by then the devices are known
            try:
                _check_devices(assignment, inventory)
                await self._launch(await self._tools.partitions.equip(task_spec(assignment, self._run)))
            except RefusedTask as refused:
                await self._refuse(refused)
                return False
        # Neither is needed any more, and it holds secrets.
        self._assignment = None
        return True

    async def _launch(self, spec: TaskSpec) -> None:
        try:
            await self._tools.runtime.prepare(spec)
            await self._tools.runtime.start(spec)
        except OSError as error:
            raise RefusedTask(RefusalCode.START_FAILED, f"{type(error).__name__}: {error.strerror}") from error

    async def _refuse(self, refused: RefusedTask) -> None:
        log.warning("task_refused", allocation_id=str(self.allocation_id), code=refused.code.value)
        try:
            await self._tools.runtime.stop(self._run.allocation_id, 0)
            await self._tools.runtime.remove(self._run.allocation_id)
        except (RunNotFound, GroupNotEmpty):
            pass  # nothing was prepared; or the next agent adopts what stays
        await self._tools.partitions.release(self._run.allocation_id)
        started = refused.code is not RefusalCode.START_FAILED
        reason = EndReason.REFUSED if started else EndReason.START_FAILED
        await self._tell(ReportKind.REFUSED, monotonic_ms(), reason=reason, message=str(refused))
        self._tools.stops.forget(self._run.allocation_id)

    # Seeing it through

    async def _see_through(self) -> None:
        pusher = LogPusher(
            self._tools.runtime,
            self._tools.plane,
            self.allocation_id,
            lambda: self.epoch,
            self._tools.log_push_seconds,
        )
        resume = self._run.status.state is not TaskState.PREPARED
        pushing = asyncio.create_task(pusher.run(self._ended, resume=resume))
        try:
            sequence = await self._watch()
            self._ended.set()
            await self._tools.reporter.wait_until_acknowledged(sequence)
            # Only its log is left: the scheduler has taken it back.
            self.is_held = False
            await pushing
        finally:
            pushing.cancel()
            for stopping in self._stopping:
                stopping.cancel()
        # Half removed, it would look like a run whose end nobody saw.
        await finish(self._remove())

    async def _remove(self) -> None:
        await self._tools.runtime.remove(self._run.allocation_id)
        self._tools.stops.forget(self._run.allocation_id)

    async def _watch(self) -> int:
        """Tell every change until the run has ended; returns the number of the last report."""
        watch: EndWatch | None = None
        emptying = iter(_EMPTYING_SECONDS)
        pause = _LOOK_SECONDS
        try:
            while True:
                self._wake.clear()
                status = await self._tools.runtime.status(self._run.allocation_id)
                await self._tell_active(status)
                if status.state is TaskState.EXITED:
                    return await self._tell_end(status)
                if status.state in (TaskState.UNKNOWN, TaskState.PREPARED):
                    self._give_up(status)
                await self._check_partitions()
                await self._obey()
                if watch is None:
                    watch = self._tools.runtime.watch(self._run.allocation_id, status, self._wake)
                if watch is None or watch.has_ended:
                    pause = next(emptying, pause if pause < _LOOK_SECONDS else _EMPTYING_SECONDS[-1])
                await wait_within(self._wake.wait(), pause)
        finally:
            if watch is not None:
                watch.close()

    def _give_up(self, status: TaskStatus) -> None:
        """Stop what has no supervisor any more. A run from before a boot ended with the machine."""
        if status.boot_id != boot_id():
            self.order_stop(0, EndReason.NODE_RESTARTED)
        elif not self._stopping:
            self._kill_ms = self._kill_ms or monotonic_ms()
            self._spawn_stop()

    async def _check_partitions(self) -> None:
        """A task whose partition is gone computes nothing any more, and is told so at once."""
        lost = await self._tools.partitions.find_lost(self._run.allocation_id) if self._kill_ms is None else None
        if lost is not None and lost.partition is not None:
            place = f"{lost.partition.profile} at slice {lost.partition.start} of {lost.identity}"
            self._lost = f"its partition {place} is no longer there"
            log.error("partition_lost", allocation_id=str(self.allocation_id), place=place)
            self.order_stop(0, EndReason.NODE_LOST)

    async def _obey(self) -> None:
        if self._kill_ms is None:
            return
        ordered = self._ordered()
        if ordered is not None and not self._told_stopping:
            self._told_stopping = True
            await self._tell(ReportKind.STOPPING, monotonic_ms(), reason=ordered)
        self._spawn_stop()

    def _spawn_stop(self) -> None:
        """One stop for each deadline; the runtime keeps the earliest."""
        name = f"stop-{self._kill_ms}"
        if all(stopping.get_name() != name for stopping in self._stopping):
            self._stopping.add(asyncio.create_task(self._stop(self._kill_ms or 0), name=name))

    async def _stop(self, kill_ms: int) -> None:
        said = False
        while True:
            try:
                await self._tools.runtime.stop(self._run.allocation_id, max(0.0, (kill_ms - monotonic_ms()) / 1000))
            except GroupNotEmpty as error:
                if not said:
                    log.error("task_cannot_be_killed", allocation_id=str(self.allocation_id), detail=str(error))
                said = True
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._wake.set()
                return

    async def _tell_active(self, status: TaskStatus) -> None:
        if self._told_active or status.started_monotonic_ms is None:
            return
        self._record(status)
        await self._tell(ReportKind.STARTING, status.started_monotonic_ms, at_boot_id=status.boot_id)
        if status.active_monotonic_ms is not None:
            await self._tell(ReportKind.ACTIVE, status.active_monotonic_ms, at_boot_id=status.boot_id)
        self._told_active = True

    async def _tell_end(self, status: TaskStatus) -> int:
        self._record(status)
        await self._tools.partitions.release(self._run.allocation_id)
        reason = end_reason(status, self._ordered())
        log.info("task_ended", allocation_id=str(self.allocation_id), reason=reason.value, exit=exit_number(status))
        return await self._tell(
            ReportKind.RELEASED,
            status.empty_monotonic_ms or monotonic_ms(),
            at_boot_id=status.boot_id,
            exit_code=exit_number(status),
            reason=reason,
            message=status.message or self._lost,
        )

    async def _tell(
        self,
        kind: ReportKind,
        at_ms: int,
        *,
        at_boot_id: str | None = None,
        exit_code: int | None = None,
        reason: EndReason | None = None,
        message: str | None = None,
    ) -> int:
        sequence = await self._tools.reporter.report(
            kind,
            str(self.allocation_id),
            self.epoch,
            at_ms,
            at_boot_id=at_boot_id,
            exit_code=exit_code,
            reason=reason,
            message=message,
        )
        self.told.set()
        return sequence

    def _record(self, status: TaskStatus) -> None:
        self._tools.spool.record_run(Run(replace(self._run.terms, epoch=self.epoch), status))

    def _ordered(self) -> EndReason | None:
        return self._tools.stops.find(self._run.allocation_id)


def assigned_run(assignment: Assignment) -> Run:
    """The run that the assignment will become; nothing of it exists yet."""
    terms = TaskTerms(
        allocation_id=str(assignment.allocation_id),
        job_id=str(assignment.job_id),
        task_id=str(assignment.task_id),
        tenant_id=str(assignment.tenant_id),
        attempt=assignment.attempt,
        epoch=assignment.epoch,
        cpu_milli=assignment.cpu_milli,
        memory_mib=assignment.memory_mib,
        devices=tuple(_grant(share) for share in assignment.devices),
        stop_grace_seconds=assignment.stop_grace_seconds,
    )
    return Run(terms, TaskStatus(TaskState.PREPARED, boot_id()))


def _grant(share: DeviceShare) -> DeviceGrant:
    own = None if share.partition is None else PartitionGrant(**dict(share.partition))
    return DeviceGrant(share.identity, share.vendor, share.index, share.uuid, share.milli, share.memory_mib, own)


def task_spec(assignment: Assignment, run: Run) -> TaskSpec:
    """What the runtime is to run for the assignment that becomes `run`."""
    return TaskSpec(
        run.terms,
        assignment.command,
        assignment.env,
        assignment.image,
        assignment.time_limit_seconds,
        None if assignment.simulate is None else _simulation(assignment.simulate),
    )


def _simulation(spec: SimulateSpec) -> Simulation:
    curves = {name: sorted((point.at_seconds, point.value) for point in curve) for name, curve in spec.signals.items()}
    signals = {name: tuple(points) for name, points in curves.items()}
    return Simulation(spec.seconds, spec.exit_code, spec.stop_seconds, signals)


def _check_devices(assignment: Assignment, inventory: NodeInventory | None) -> None:
    """A task whose device is gone would start and see none: its runtime's variable names what is not there."""
    reported = () if inventory is None else inventory.devices
    present = {device.identity for device in reported if device.health is not DeviceHealth.LOST}
    absent = [device.identity for device in assignment.devices if device.identity not in present]
    if absent:
        raise RefusedTask(RefusalCode.ABSENT_DEVICE, f"this machine has no device {', '.join(absent)} now")
