"""Rules on where tasks stand beside others, through rows and a change of leader."""

import pytest

from millpond_contracts.bodies.groups import Requirements
from millpond_contracts.bodies.places import AntiAffinity, AntiAffinityScope, NodeAffinity, TopologySpread
from millpond_contracts.ids import JobId
from millpond_contracts.resources import Topology, TopologyLevel
from millpond_kernel.db import TenantScope
from millpond_kernel.leases import release_lease
from millpond_kernel.observability import LOOP_PASSES
from millpond_scheduler.usecases.jobs import submit_job
from tests.integration.scheduler.world import ONE_DEVICE, World, make_spec, member

pytestmark = pytest.mark.integration

APART = Requirements(anti_affinity=(AntiAffinity(scope=AntiAffinityScope.JOB),))


async def dominant(world: World, job: JobId) -> str | None:
    return str(await world.value("SELECT dominant FROM verdict WHERE job_id = $1", job))


async def racks_of(world: World, job: JobId) -> list[str]:
    rows = await world.fetch("SELECT node_id FROM allocation WHERE job_id = $1 AND state <> 'released'", job)
    return sorted(str(world.nodes[row["node_id"]].topology.rack) for row in rows)


async def test_rules_when_another_leader_takes_over_then_it_knows_who_stands_where(world: World) -> None:
    for rack in ("r1", "r1", "r2"):
        await world.add_node(devices=2, topology=Topology(rack=rack))
    share = await world.add_virtual_pool()
    kept_away = Requirements(anti_affinity=(AntiAffinity(level=TopologyLevel.RACK, labels={"app": "db"}),))
    only_r1 = Requirements(affinity=(NodeAffinity(label="rack", values=("r1",)),))
    data = await world.submit(share, devices=ONE_DEVICE, labels={"app": "db", "tier": "a"}, requires=only_r1)
    apart = await world.submit(share, devices=ONE_DEVICE, count=2, requires=APART)
    first = world.leader()
    await first.step()
    assert await racks_of(world, data.job_id) == ["r1"]
    nodes = "SELECT count(DISTINCT node_id) FROM allocation WHERE job_id = $1"
    assert await world.value(nodes, apart.job_id) == 2
    # What a new leader has is read from rows alone.
    assert first.lease is not None
    await release_lease(world.database, first.lease)
    other = world.leader()
    away = await world.submit(share, cpu=4500, requires=kept_away, count=2)
    await other.step()
    assert await racks_of(world, away.job_id) == ["r2"]
    await other.step()
    assert await dominant(world, away.job_id) == "anti_affinity"
    await world.assert_counters_are_true()


async def test_gang_when_packed_and_spread_then_bound_in_one_rack_with_its_bound_per_node(world: World) -> None:
    for rack in ("r1", "r2", "r2", "r2"):
        await world.add_node(devices=4, topology=Topology(zone="z", rack=rack))
    share = await world.add_virtual_pool()
    spread = (TopologySpread(level=TopologyLevel.NODE, max_tasks=2),)
    requires = Requirements(pack=TopologyLevel.RACK, spread=spread)
    gang = await world.submit(share, devices=ONE_DEVICE, count=5, gang=True, requires=requires)
    leader = world.leader()
    await leader.step()
    assert await racks_of(world, gang.job_id) == ["r2"] * 5
    rows = await world.fetch("SELECT count(*) AS tasks FROM allocation GROUP BY node_id")
    assert sorted(row["tasks"] for row in rows) == [1, 2, 2]
    packed = Requirements(pack=TopologyLevel.RACK)
    second = await world.submit(share, devices=ONE_DEVICE, count=8, gang=True, requires=packed)
    await leader.step()
    await leader.step()
    body = await world.value("SELECT body FROM verdict WHERE job_id = $1", second.job_id)
    assert body["dominant"] == "domain_too_small"
    assert (body["gang"]["level"], body["gang"]["domain"]) == ("rack", "z/r2")


async def test_gang_when_its_groups_find_no_place_one_after_the_other_then_an_exact_search_binds_it(
    world: World,
) -> None:
    for rack, cpu in (("r1", 3000), ("r2", 8000)):
        await world.add_node(cpu=cpu, topology=Topology(rack=rack))
    share = await world.add_virtual_pool()
    spec = make_spec(share.virtual_pool_id, cpu=2000, gang=True)
    wide, only_r1 = spec.groups[0], (NodeAffinity(label="rack", values=("r1",)),)
    picky = wide.model_copy(
        update={
            "name": "picky",
            "resources": wide.resources.model_copy(update={"cpu_milli": 1000}),
            # Said by one group alone, of the whole job.
            "requires": APART.model_copy(update={"affinity": only_r1}),
        }
    )
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        caller = member(share.tenant_id)
        job = await submit_job(unit, caller, spec.model_copy(update={"groups": (wide, picky)}))
    searches = LOOP_PASSES.labels("scheduler", "exact_search", "found")
    before = searches._value.get()
    await world.leader().step()
    assert searches._value.get() == before + 1
    rows = await world.fetch("SELECT group_name, node_id FROM allocation WHERE job_id = $1", job.job_id)
    racks = {row["group_name"]: world.nodes[row["node_id"]].topology.rack for row in rows}
    assert racks == {"main": "r2", "picky": "r1"}
