"""Partitions of simulated devices: made at legal starts of their model, and gone when the machine was restarted."""

from collections.abc import Collection, Mapping
from pathlib import Path

from millpond_contracts.partitions import Geometry, mask_of
from millpond_node_agent.partitions import PartitionError, Place, place_of
from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import boot_id
from millpond_node_agent.runtimes.protocol import DeviceGrant


class SimulatedPartitions:
    """Obeys the rules of the hardware; see `partitions.PartitionMaker`.

    Args:
        geometries: of each device in partition mode, by its identity.
    """

    look_again_seconds = 1.0

    def __init__(self, path: Path, geometries: Mapping[str, Geometry]) -> None:
        """Take up the partitions of this boot, kept in the document at `path`."""
        self._path = path
        self._geometries = geometries
        known = runfolder.read_document(str(path))
        kept = [] if known is None or known["boot_id"] != boot_id() else known["places"]
        self._places: set[Place] = {(name, start, slices) for name, start, slices in kept if name in geometries}

    async def create(self, grant: DeviceGrant) -> str:
        place, partition = place_of(grant), grant.partition
        assert partition is not None
        geometry = self._geometries.get(grant.identity)
        profile = None if geometry is None else geometry.find_profile(partition.profile)
        if profile is None:
            raise PartitionError(f"device {grant.identity} has no partitions of the profile {partition.profile}")
        if partition.start not in profile.starts or partition.slices != profile.slices:
            raise PartitionError(f"a {partition.profile} cannot begin at slice {partition.start}")
        if place not in self._places:
            mask = mask_of(partition.start, partition.slices)
            if any(place[0] == grant.identity and mask & mask_of(*place[1:]) for place in self._places):
                raise PartitionError(f"another partition lies in slices of {grant.identity} from {partition.start} on")
            self._places.add(place)
            self._keep()
        return f"MIG-{grant.uuid}-{partition.start}-{partition.slices}"

    async def destroy(self, grant: DeviceGrant) -> None:
        self._places.discard(place_of(grant))
        self._keep()

    async def list_places(self, devices: Collection[str]) -> frozenset[Place]:
        return frozenset(place for place in self._places if place[0] in devices)

    def _keep(self) -> None:
        runfolder.write_document(str(self._path), {"boot_id": boot_id(), "places": sorted(self._places)})
