"""The agent's side of partitions of real devices: a child with a deadline for each request, never the library."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from millpond_contracts.partitions import list_geometries
from millpond_node_agent.hardware.nvidia_device import VENDOR
from millpond_node_agent.partitions import PartitionError, Place, place_of
from millpond_node_agent.runtimes.protocol import DeviceGrant

_MODULE = "millpond_node_agent.hardware.nvidia_partitions"
_SECONDS = 30.0
_KILL_SECONDS = 0.5


class NvidiaPartitions:
    """Partitions through NVML; see `partitions.PartitionMaker`.

    Args:
        environment: the children's; None means this process's own.
    """

    look_again_seconds = 60.0

    def __init__(self, environment: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> None:
        self._environment = dict(os.environ if environment is None else environment)
        self._seconds = seconds

    async def create(self, grant: DeviceGrant) -> str:
        _, start, slices = place_of(grant)
        assert grant.partition is not None
        compute = _compute_slices(grant.partition.profile, slices)
        asked = {"do": "create", "uuid": _uuid(grant), "compute": compute, "start": start, "slices": slices}
        return str(await self._ask(asked))

    async def destroy(self, grant: DeviceGrant) -> None:
        _, start, slices = place_of(grant)
        await self._ask({"do": "destroy", "uuid": _uuid(grant), "start": start, "slices": slices})

    async def list_places(self, devices: Collection[str]) -> frozenset[Place]:
        uuids = {identity.removeprefix(f"{VENDOR}/"): identity for identity in devices}
        found = await self._ask({"do": "list", "uuids": sorted(uuids)})
        return frozenset((uuids[uuid], start, slices) for uuid, places in found.items() for start, slices in places)

    async def _ask(self, request: Mapping[str, object]) -> Any:
        told = await asyncio.to_thread(self._talk, json.dumps(request).encode())
        try:
            answer = json.loads(told)
        except ValueError as error:
            raise PartitionError("the process that speaks to NVML ended without an answer") from error
        if "error" in answer:
            raise PartitionError(answer["error"])
        return answer["ok"]

    def _talk(self, request: bytes) -> bytes:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=self._environment,
            start_new_session=True,
        )
        try:
            return child.communicate(request, self._seconds)[0]
        except subprocess.TimeoutExpired as error:
            child.kill()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_KILL_SECONDS)  # not longer: in the driver a process may not die
            raise PartitionError(f"NVML does not answer within {self._seconds:g} s") from error


def _uuid(grant: DeviceGrant) -> str:
    if grant.vendor != VENDOR or grant.uuid is None:
        raise PartitionError(f"device {grant.identity} cannot be divided by its vendor's tool")
    return grant.uuid


def _compute_slices(profile: str, slices: int) -> int:
    known = (geometry.find_profile(profile) for geometry in list_geometries())
    found = next((each.compute_slices for each in known if each is not None and each.slices == slices), None)
    if found is None:
        raise PartitionError(f"no profile {profile} of {slices} memory slices is known")
    return found
