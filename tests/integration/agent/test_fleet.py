"""A simulated fleet against the real services: dozens of nodes join, act jobs out, come back, and leave."""

import json
from typing import Any

import pytest

from tests.integration.agent.waters import CPU, FLAVOR, GPU, Waters
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_fleet_when_described_then_its_nodes_join_and_act_jobs_out(waters: Waters) -> None:
    waters.describe("base", GPU, CPU)
    async with waters.fleet():
        nodes = await waters.wait_for_nodes(24)
        assert len({node["node_id"] for node in nodes.values()}) == 24
        gpu = nodes["gpu-0"]
        assert [taint["key"] for taint in gpu["taints"]] == ["simulated"]
        assert {device["flavor"] for device in gpu["devices"]} == {FLAVOR}
        assert (nodes["cpu-3"]["topology"]["zone"], nodes["cpu-3"]["labels"]["use"]) == ("z1", "any")

        member = await waters.tenant()
        good = await member.submit({"simulate": {"seconds": 1}}, gpus=8, count=4)
        bad = await member.submit({"simulate": {"seconds": 0.5, "exit_code": 3}})
        ended = await member.wait_for(good, "succeeded", "failed")
        assert (ended["state"], len({task["allocation"]["node_id"] for task in ended["tasks"]})) == ("succeeded", 4)
        failed = await member.wait_for(bad, "failed")
        assert (failed["tasks"][0]["reason"], failed["tasks"][0]["exit_code"]) == ("exit_code", 3)

        async def log_ended() -> str | None:
            page = (await member.call("GET", f"/v1/jobs/{bad}/logs", expect=200)).json()
            return str(page["text"]) if page["ended"] else None

        assert (await eventually(log_ended)).splitlines()[-1] == "ended with exit code 3"


async def test_job_when_real_and_all_nodes_are_simulated_then_it_waits_and_says_why(waters: Waters) -> None:
    waters.describe("base", {**CPU, "count": 3})
    async with waters.fleet():
        await waters.wait_for_nodes(3)
        member = await waters.tenant(devices=0)
        job_id = await member.submit({"command": ["true"]})

        async def explained() -> dict[str, Any] | None:
            answer = (await member.call("GET", f"/v1/jobs/{job_id}/explain", expect=200)).json()
            return answer if answer["counts"] else None

        explanation = await eventually(explained)
        assert (explanation["dominant"], explanation["counts"]) == ("taint", {"taint": 3})


async def test_job_when_cancelled_then_its_stop_is_obeyed_and_then_forced(waters: Waters) -> None:
    waters.describe("base", {**CPU, "count": 2})
    async with waters.fleet():
        await waters.wait_for_nodes(2)
        member = await waters.tenant(devices=0)
        soft = await member.submit({"simulate": {"seconds": 600}})
        hard = await member.submit({"simulate": {"seconds": 600, "stop_seconds": 600}})
        for job_id in (soft, hard):
            await member.wait_for(job_id, "running")
            await member.call("POST", f"/v1/jobs/{job_id}/cancel", expect=200)
        for job_id, number in ((soft, -15), (hard, -9)):
            task = (await member.wait_for(job_id, "cancelled"))["tasks"][0]
            assert (task["allocation"]["state"], task["allocation"]["exit_code"]) == ("released", number)


async def test_fleet_when_its_process_starts_again_then_the_same_nodes_and_their_tasks_went_on(waters: Waters) -> None:
    waters.describe("base", {**CPU, "count": 3})
    async with waters.fleet():
        before = await waters.wait_for_nodes(3)
        member = await waters.tenant(devices=0)
        job_id = await member.submit({"simulate": {"seconds": 4}})
        running = await member.wait_for(job_id, "running")
    async with waters.fleet():
        ended = await member.wait_for(job_id, "succeeded", "failed")
        after = await waters.wait_for_nodes(3)
    task = ended["tasks"][0]
    assert (ended["state"], task["attempt"]) == ("succeeded", 1)
    assert task["allocation"]["active_at"] == running["tasks"][0]["allocation"]["active_at"]
    assert {node["node_id"] for node in after.values()} == {node["node_id"] for node in before.values()}
    assert all(after[name]["incarnation"] > before[name]["incarnation"] for name in before)


async def test_order_when_its_file_comes_and_goes_then_its_nodes_boot_join_stop_their_work_and_leave(
    waters: Waters,
) -> None:
    waters.describe("base", {**CPU, "count": 1})
    async with waters.fleet():
        await waters.wait_for_nodes(1)
        waters.describe("order-1", {**CPU, "name": "more", "count": 6, "boot_seconds": 1})
        nodes = await waters.wait_for_nodes(7)
        member = await waters.tenant(devices=0, cpu=64_000)
        job_id = await member.submit({"simulate": {"seconds": 600}}, count=40)
        await member.wait_for(job_id, "running")

        async def on_both() -> bool:
            tasks = (await member.job(job_id))["tasks"]
            held = {task["allocation"]["node_id"] for task in tasks if task["allocation"] is not None}
            return {task["state"] for task in tasks} == {"running"} and len(held) > 1

        await eventually(on_both, 30)
        waters.forget("order-1")

        async def stopped() -> list[dict[str, Any]] | None:
            tasks = (await member.job(job_id))["tasks"]
            there = [task for task in tasks if task["allocation"]["node_id"] != nodes["cpu-0"]["node_id"]]
            return there if all(task["allocation"]["state"] == "released" for task in there) else None

        ended = await eventually(stopped, 30)
        assert {task["allocation"]["reason"] for task in ended} == {"drained"}
        state = waters.place / "state" / "nodes"
        assert await eventually(lambda: [path.name for path in state.iterdir()] == ["base.cpu-0"], 30)
        # A later order of the same name is another machine.
        waters.describe("order-1", {**CPU, "name": "more", "count": 1})
        renewed = await eventually(lambda: _named(waters, "more-0-2"), 30)
        assert renewed["node_id"] not in {node["node_id"] for node in nodes.values()}


async def _named(waters: Waters, name: str) -> dict[str, Any] | None:
    return (await waters.nodes()).get(name)


async def test_order_when_it_vanished_while_no_process_ran_then_its_work_is_stopped_by_the_next(
    waters: Waters,
) -> None:
    waters.describe("order-1", {**CPU, "count": 1})
    async with waters.fleet():
        await waters.wait_for_nodes(1)
        member = await waters.tenant(devices=0)
        job_id = await member.submit({"simulate": {"seconds": 600}})
        await member.wait_for(job_id, "running")
    waters.forget("order-1")
    async with waters.fleet():
        task = (await member.wait_for(job_id, "failed", "pending"))["tasks"][0]
        assert "drained" in json.dumps(task)


async def test_entry_when_it_changes_then_the_same_node_comes_back_with_other_hardware(waters: Waters) -> None:
    waters.describe("base", {**CPU, "count": 1})
    async with waters.fleet():
        before = (await waters.wait_for_nodes(1))["cpu-0"]
        waters.describe("base", {**CPU, "count": 1, "cpu_milli": 48_000})

        async def grown() -> dict[str, Any] | None:
            node = (await waters.nodes())["cpu-0"]
            return node if node["cpu_milli"] == 48_000 else None

        after = await eventually(grown, 30)
        assert after["node_id"] == before["node_id"]


async def test_file_when_its_token_is_refused_then_the_others_join_and_it_is_tried_again(waters: Waters) -> None:
    waters.describe("base", {**CPU, "count": 2})
    waters.describe("order-1", {**CPU, "name": "late", "count": 1}, join_token="mpj_no_such_token")
    async with waters.fleet():
        assert sorted(await waters.wait_for_nodes(2)) == ["cpu-0", "cpu-1"]


async def test_fleet_when_its_devices_are_divided_then_partitions_are_made_lost_and_replaced_as_a_set_case_26(
    waters: Waters,
) -> None:
    """What a node reports of its mode wins, in capacity and placing; who had a lost partition ends and is told why."""
    one = {**GPU, "count": 1, "devices": 1}

    async def capacity() -> dict[str, Any]:
        path = f"/v1/pools/{waters.pool_id}/capacity"
        (figures,) = (await waters.operator("GET", path, expect=200)).json()["devices"] or [{}]
        return dict(figures)

    async def divided() -> bool:
        figures = await capacity()
        return bool(figures and figures["fits"]["1000"] == 0 and figures["partitions"].get("1g.10gb") == 7)

    async def whole() -> bool:
        figures = await capacity()
        return bool(figures["fits"]["1000"] == 1 and not figures["partitions"])

    waters.describe("base", {**one, "partitioned": True})
    async with waters.fleet():
        await waters.wait_for_nodes(1)
        member = await waters.tenant(devices=1_000)
        await eventually(divided, 30)
        lost = await member.submit({"simulate": {"seconds": 600}}, profile="3g.40gb")
        kept = await member.submit({"simulate": {"seconds": 600}}, profile="2g.20gb")
        for job_id in (lost, kept):
            await member.wait_for(job_id, "running")
        (document,) = waters.place.glob("state/**/base.gpu-0/partitions.json")
        made = json.loads(document.read_text())
        assert sorted(place[1:] for place in made["places"]) == [[0, 2], [4, 4]]

    # Somebody takes one away by hand while no agent looks; the next one sees it, and the task is told.
    made["places"] = [place for place in made["places"] if place[1:] == [0, 2]]
    document.write_text(json.dumps(made))
    async with waters.fleet():
        task = (await member.wait_for(lost, "failed"))["tasks"][0]
        assert (task["reason"], task["allocation"]["state"]) == ("node_lost", "released")
        assert "3g.40gb at slice 4" in task["message"]
        assert "is no longer there" in task["message"]
        assert (await member.job(kept))["state"] == "running"

        # Undivided: its partitions' work is stopped, and the device is whole again and nothing else.
        waters.describe("base", one)
        await member.wait_for(kept, "failed", "cancelled")

        await eventually(whole, 30)
        job_id = await member.submit({"simulate": {"seconds": 0.2}}, gpus=1)
        assert (await member.wait_for(job_id, "succeeded", "failed"))["state"] == "succeeded"
