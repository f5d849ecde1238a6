"""Hardware partitions that this agent makes for its tasks, and takes down when these have ended.

Who makes them on the hardware is a `PartitionMaker`. What was made for whom is written down before it is made, so that
nothing is left behind by an agent that died, and nothing is taken down that somebody else made.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol, TypeAlias

from millpond_node_agent.observability import log
from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.protocol import DeviceGrant, PartitionGrant, RefusalCode, RefusedTask, TaskSpec

Place: TypeAlias = tuple[str, int, int]
"""Where a partition lies: the device's identity, its first memory slice, and how many."""


class PartitionError(Exception):
    """The hardware, or what speaks for it, refused; the message is for people."""


class PartitionMaker(Protocol):
    """Makes and removes partitions of devices. Every operation may be repeated; a repeated one changes nothing."""

    look_again_seconds: float

    async def create(self, grant: DeviceGrant) -> str:
        """The name under which a task sees the partition, made unless it is there already.

        Nothing that is there is touched: what lies in its place, or in a part of it, refuses it.

        Raises:
            PartitionError: it cannot be made.
        """
        ...

    async def destroy(self, grant: DeviceGrant) -> None:
        """Removes the partition; one that is not there is no error.

        Raises:
            PartitionError: it is in use, or cannot be removed.
        """
        ...

    async def list_places(self, devices: Collection[str]) -> frozenset[Place]:
        """Where partitions of these devices lie now, whoever made them.

        Raises:
            PartitionError: nobody can tell.
        """
        ...


class NoPartitions:
    """A machine that makes none."""

    look_again_seconds = 60.0

    async def create(self, grant: DeviceGrant) -> str:
        raise PartitionError("this machine makes no partitions")

    async def destroy(self, grant: DeviceGrant) -> None:
        return None

    async def list_places(self, devices: Collection[str]) -> frozenset[Place]:
        return frozenset()


class Partitions:
    """The partitions of one machine's tasks, by allocation."""

    def __init__(self, folder: Path, maker: PartitionMaker) -> None:
        """Read what earlier agents wrote in `folder` (made when missing)."""
        self._folder = folder
        self._maker = maker
        self._lock = asyncio.Lock()  # vendors' libraries do not take two changes at once
        self._seen: tuple[int, frozenset[Place]] | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._made: dict[str, tuple[DeviceGrant, ...]] = {path.stem: _read(path) for path in folder.glob("*.json")}

    async def equip(self, spec: TaskSpec) -> TaskSpec:
        """The task with its partitions made, and named as it will see them; of other tasks the same.

        Raises:
            RefusedTask: `no_partition`, one of them cannot be made; nothing of them is left.
        """
        wanted = tuple(grant for grant in spec.terms.devices if grant.partition is not None)
        if not wanted:
            return spec
        async with self._lock:
            self._write(spec.allocation_id, wanted)
            self._seen = None
            try:
                names = {grant: await self._maker.create(grant) for grant in wanted}
            except PartitionError as error:
                await self._take_down(spec.allocation_id)
                raise RefusedTask(RefusalCode.NO_PARTITION, str(error)) from error
        devices = tuple(replace(grant, uuid=names.get(grant, grant.uuid)) for grant in spec.terms.devices)
        return replace(spec, terms=replace(spec.terms, devices=devices))

    async def release(self, allocation_id: str) -> None:
        """Take down what was made for a task that has ended. What cannot be removed stays, and a log line says so."""
        if allocation_id in self._made:
            async with self._lock:
                await self._take_down(allocation_id)

    async def find_lost(self, allocation_id: str) -> DeviceGrant | None:
        """A partition of a running task that is gone, as after a change by hand; None as long as all are there.

        Where nobody can tell, they are there.
        """
        wanted = self._made.get(allocation_id)
        if wanted is None:
            return None
        async with self._lock:
            places = await self._look()
        return next((grant for grant in wanted if places is not None and place_of(grant) not in places), None)

    async def sweep(self, kept: Iterable[str]) -> None:
        """Take down what an earlier agent made for tasks that are gone; run once, before the first poll."""
        for allocation_id in self._made.keys() - set(kept):
            await self.release(allocation_id)

    async def _look(self) -> frozenset[Place] | None:
        now = monotonic_ms()
        if self._seen is None or now - self._seen[0] >= self._maker.look_again_seconds * 1000:
            devices = {grant.identity for grants in self._made.values() for grant in grants}
            try:
                self._seen = now, await self._maker.list_places(devices)
            except PartitionError as error:
                log.warning("partitions_unknown", reason=str(error))
                return None
        return self._seen[1]

    async def _take_down(self, allocation_id: str) -> None:
        self._seen = None
        try:
            for grant in self._made[allocation_id]:
                await self._maker.destroy(grant)
        except PartitionError as error:
            log.error("partition_stays", allocation_id=allocation_id, reason=str(error))
            return
        del self._made[allocation_id]
        self._path(allocation_id).unlink(missing_ok=True)

    def _write(self, allocation_id: str, grants: tuple[DeviceGrant, ...]) -> None:
        document = {"boot_id": boot_id(), "devices": [asdict(grant) for grant in grants]}
        runfolder.write_document(str(self._path(allocation_id)), document)
        self._made[allocation_id] = grants

    def _path(self, allocation_id: str) -> Path:
        return self._folder / f"{allocation_id}.json"


def place_of(grant: DeviceGrant) -> Place:
    """Where a granted partition lies."""
    assert grant.partition is not None
    return grant.identity, grant.partition.start, grant.partition.slices


def _read(path: Path) -> tuple[DeviceGrant, ...]:
    document = runfolder.read_document(str(path)) or {"devices": []}
    return tuple(
        DeviceGrant(**each | {"partition": PartitionGrant(**each["partition"])}) for each in document["devices"]
    )
