"""Partitions of devices: one contract for the simulated maker and for NVML's over the stand-in, and who cleans up."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millpond_contracts.partitions import find_geometry
from millpond_node_agent.hardware.partition_child import NvidiaPartitions
from millpond_node_agent.hardware.supervisor import HardwareSupervisor
from millpond_node_agent.partitions import NoPartitions, PartitionError, PartitionMaker, Partitions, place_of
from millpond_node_agent.runtimes.protocol import (
    DeviceGrant,
    PartitionGrant,
    RefusalCode,
    RefusedTask,
    TaskSpec,
    TaskTerms,
)
from millpond_node_agent.simulation.partitions import SimulatedPartitions
from tests.integration.agent_hardware.conftest import StubEnvironment

pytestmark = pytest.mark.integration

UUID = "GPU-00000000-0000-4000-8000-000000000000"


def grant(profile: str, start: int, slices: int, uuid: str = UUID) -> DeviceGrant:
    return DeviceGrant(f"nvidia/{uuid}", "nvidia", 0, uuid, 125 * slices, None, PartitionGrant(profile, start, slices))


def task(allocation: str, *devices: DeviceGrant) -> TaskSpec:
    return TaskSpec(TaskTerms(allocation, "job", "task", "tenant", 1, 1, 0, 0, devices, 1.0), ("true",), {}, None, None)


HALF, EIGHTH, UPPER = grant("3g.40gb", 0, 4), grant("1g.10gb", 6, 1), grant("3g.40gb", 4, 4)


@pytest.fixture(params=["simulated", "nvml"])
def make_maker(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], PartitionMaker]:
    """A maker on a device in partition mode; each one knows what those before it made, as after a restart."""
    if request.param == "simulated":
        geometry = find_geometry("H100 SXM5 80GB")
        assert geometry is not None
        return lambda: SimulatedPartitions(tmp_path / "partitions.json", {HALF.identity: geometry})
    environment = request.getfixturevalue("stub_environment")(mode="mig", state=tmp_path / "driver")
    return lambda: NvidiaPartitions(environment)


async def test_partition_when_made_again_or_after_a_restart_then_the_same_one(
    make_maker: Callable[[], PartitionMaker],
) -> None:
    maker = make_maker()
    name, other = await maker.create(HALF), await maker.create(EIGHTH)
    assert name.startswith("MIG-")
    assert name != other
    assert await make_maker().create(HALF) == name
    assert await make_maker().list_places([HALF.identity]) == {place_of(HALF), place_of(EIGHTH)}


async def test_partition_when_its_place_is_not_legal_or_taken_then_refused_and_nothing_is_changed(
    make_maker: Callable[[], PartitionMaker],
) -> None:
    maker = make_maker()
    await maker.create(EIGHTH)
    for wrong in (
        UPPER,
        grant("3g.40gb", 2, 4),
        grant("1g.10gb", 7, 1),
        grant("1g.20gb", 6, 2),
        grant("9g.90gb", 0, 1),
    ):
        with pytest.raises(PartitionError):
            await maker.create(wrong)
    assert await maker.list_places([HALF.identity]) == {place_of(EIGHTH)}


async def test_partition_when_removed_then_its_place_is_free_and_again_is_no_error(
    make_maker: Callable[[], PartitionMaker],
) -> None:
    maker = make_maker()
    await maker.create(EIGHTH)
    for _ in range(2):
        await maker.destroy(EIGHTH)
    await maker.create(UPPER)
    assert await maker.list_places([HALF.identity]) == {place_of(UPPER)}


async def test_partition_when_something_runs_in_it_then_nvml_keeps_it_and_says_so(
    stub_environment: StubEnvironment, tmp_path: Path
) -> None:
    environment = stub_environment(mode="mig_busy", state=tmp_path / "driver")
    maker = NvidiaPartitions(environment)
    await maker.create(HALF)
    with pytest.raises(PartitionError, match="NVML 19"):
        await maker.destroy(HALF)
    assert await maker.list_places([HALF.identity]) == {place_of(HALF)}


async def test_partition_when_the_device_is_not_divided_or_the_library_hangs_then_refused(
    stub_environment: StubEnvironment,
) -> None:
    with pytest.raises(PartitionError, match="not in MIG mode"):
        await NvidiaPartitions(stub_environment(mode="ok")).create(HALF)
    with pytest.raises(PartitionError, match="does not answer"):
        await NvidiaPartitions(stub_environment(mode="hang_init"), seconds=1).create(HALF)


async def test_inventory_when_mig_is_on_then_it_offers_what_the_driver_can_make(
    supervise: Callable[..., HardwareSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = await supervise(mode="mig").take_inventory()
    geometry = find_geometry("H100 SXM5 80GB")
    assert geometry is not None
    for device in inventory.devices:
        assert device.partitioning.current == "mig"
        # Only root may make them; who may not offers none.
        assert device.partitioning.profiles in ((), tuple(profile.name for profile in geometry.profiles))


# Those of the agent's tasks


async def test_partitions_when_a_task_has_them_then_it_sees_them_and_they_go_with_it(
    make_maker: Callable[[], PartitionMaker], tmp_path: Path
) -> None:
    maker = make_maker()
    partitions = Partitions(tmp_path / "made", maker)
    spec = await partitions.equip(task("alloc-1", HALF, EIGHTH))
    assert [device.uuid for device in spec.terms.devices] == [await maker.create(each) for each in (HALF, EIGHTH)]
    assert await partitions.find_lost("alloc-1") is None
    with pytest.raises(RefusedTask) as refused:
        await partitions.equip(task("alloc-2", UPPER))
    assert refused.value.code is RefusalCode.NO_PARTITION
    await partitions.release("alloc-1")
    assert await maker.list_places([HALF.identity]) == frozenset()
    assert list((tmp_path / "made").iterdir()) == []


async def test_partitions_when_the_agent_died_then_the_next_one_removes_what_no_task_has_and_nothing_else(
    make_maker: Callable[[], PartitionMaker], tmp_path: Path
) -> None:
    maker = make_maker()
    await maker.create(EIGHTH)  # somebody else's
    before = Partitions(tmp_path / "made", maker)
    await before.equip(task("alloc-1", HALF))
    await before.equip(task("alloc-2", grant("1g.10gb", 4, 1)))
    after = Partitions(tmp_path / "made", make_maker())
    await after.sweep(["alloc-2"])
    assert await make_maker().list_places([HALF.identity]) == {place_of(EIGHTH), (HALF.identity, 4, 1)}
    await after.release("alloc-2")
    assert await make_maker().list_places([HALF.identity]) == {place_of(EIGHTH)}


async def test_partitions_when_one_is_taken_away_by_hand_then_it_is_found_lost_case_26(tmp_path: Path) -> None:
    geometry = find_geometry("H100 SXM5 80GB")
    assert geometry is not None
    maker = SimulatedPartitions(tmp_path / "partitions.json", {HALF.identity: geometry})
    maker.look_again_seconds = 0.0
    partitions = Partitions(tmp_path / "made", maker)
    await partitions.equip(task("alloc-1", HALF))
    assert await partitions.find_lost("alloc-1") is None
    await maker.destroy(HALF)
    assert await partitions.find_lost("alloc-1") == HALF
    await maker.create(HALF)
    assert await partitions.find_lost("alloc-1") is None


async def test_partitions_when_the_machine_makes_none_then_refused_and_other_tasks_are_as_they_were(
    tmp_path: Path,
) -> None:
    partitions = Partitions(tmp_path / "made", NoPartitions())
    with pytest.raises(RefusedTask):
        await partitions.equip(task("alloc-1", HALF))
    plain = task("alloc-2", replace(HALF, partition=None))
    assert await partitions.equip(plain) is plain
    await partitions.release("alloc-2")
