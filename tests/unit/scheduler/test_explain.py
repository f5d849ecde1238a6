"""What a person is told about a waiting task."""

import time
from dataclasses import replace

import pytest

from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.tenants import Limit
from millpond_contracts.ecosystem import Ecosystem, EcosystemRequirement
from millpond_contracts.ids import TaskId
from millpond_scheduler.domain.explain import Explanation, amount_in_words, explain
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import OTHER_POOL, RIVAL, SECOND_US, TENANT, World, node, request, virtual_pool

pytestmark = pytest.mark.unit


def explained(world: World, task: TaskId) -> Explanation:
    (queued,) = [one for one in world.queue if one.id == task]
    return explain(world.snapshot, queued, world.states(), position=3)


def test_explanation_when_a_node_is_partly_used_then_says_what_to_release_where() -> None:
    world = World.of(node(1, gpus=4), node(2, gpus=8), node(3), node(4, gpus=8, pool=OTHER_POOL))
    world.submit(request(count=2))
    world.submit(request(count=6))
    world.run()
    (task,) = world.submit(request(count=4))
    told = explained(world, task)
    assert told.dominant is Reason.NOT_ENOUGH_DEVICES
    assert told.counts == {Reason.NO_MATCHING_DEVICE: 1, Reason.NOT_ENOUGH_DEVICES: 2}
    assert told.nodes == 3
    assert told.position == 3
    assert (told.largest_free_devices, told.largest_free_milli) == (2, 1000)
    assert told.could_ever_fit
    assert [one.action for one in told.would_unblock] == ["release 2 devices on node n1"]
    assert told.message == "no matching node has enough free devices (2 of 3 nodes)"


def test_explanation_when_a_slice_does_not_fit_then_says_how_much_is_short() -> None:
    world = World.of(node(1, gpus=1))
    world.submit(request(count=1, milli=700))
    world.run()
    (task,) = world.submit(request(count=1, milli=400))
    told = explained(world, task)
    assert told.would_unblock[0].action == "release room for the slice on one device (100 milli short) on node n1"
    assert told.largest_free_milli == 300


def test_explanation_when_a_limit_blocks_then_tells_the_limit_and_by_how_much() -> None:
    world = World.of(node(1, gpus=4), pools=[virtual_pool(devices={"a100": Limit(guaranteed=1000, borrow=500)})])
    world.submit(request(count=1))
    world.run()
    (task,) = world.submit(request(count=1))
    told = explained(world, task)
    assert told.dominant is Reason.LIMIT_REACHED
    assert told.counts == {Reason.PLACEABLE: 1}
    (line,) = [line for line in told.admission if line.flavor == "a100"]
    assert (line.limit, line.used, line.borrowed, line.requested, line.missing) == (1500, 1000, 0, 1000, 500)
    assert told.would_unblock[0].action.startswith("raise the limit of device/a100 by 0.5 devices")


def test_explanation_when_only_the_limited_flavor_has_room_then_the_limit_is_the_reason() -> None:
    limits = {"a100": Limit(guaranteed=500), "t4": Limit(guaranteed=8000)}
    world = World.of(node(1, gpus=4), node(2, gpus=1, flavor="t4"), pools=[virtual_pool(devices=limits)])
    world.submit(request(count=1, flavors=["t4"]))
    world.run()
    (task,) = world.submit(request(count=1))
    rejection = world.run().rejections[task]
    told = explained(world, task)
    assert told.dominant is rejection.reason is Reason.LIMIT_REACHED
    assert told.counts == rejection.counts == {Reason.PLACEABLE: 1, Reason.NOT_ENOUGH_DEVICES: 1}
    assert told.would_unblock[0].action.startswith("raise the limit of device/a100 by 0.5 devices")


def test_explanation_when_limits_of_several_flavors_are_short_then_only_those_with_room_for_it_would_help() -> None:
    limits = {"a100": Limit(guaranteed=1000), "t4": Limit(guaranteed=1000)}
    world = World.of(node(1, gpus=8), node(2, gpus=2, flavor="t4"), pools=[virtual_pool(devices=limits)])
    (alone,) = world.submit(request(count=4))
    told = explained(world, alone)
    assert {line.flavor for line in told.admission if line.missing} == {"a100", "t4"}
    assert [each.action.split(",")[0] for each in told.would_unblock] == ["raise the limit of device/a100 by 3 devices"]
    world.submit_gang(request(count=2), 4)
    rejections = world.run().rejections
    first = next(task.id for task in world.queue if task.gang is not None)
    gang = explain(world.snapshot, world.queue[1], world.states(), rejection=rejections[first])
    actions = [each.action.split(",")[0] for each in gang.would_unblock]
    assert actions[0] == "raise the limit of device/a100 by 7 devices"
    assert not any("t4" in action for action in actions), "one of its tasks at most could ever run there"
    (larger,) = world.submit(request(count=8))
    told = explained(world, larger)
    assert told.would_unblock[0].action.startswith("raise the limit of device/a100 by 7 devices")


def test_explanation_when_another_pool_has_other_flavors_then_only_limits_of_this_pool_are_told() -> None:
    world = World.of(node(1, gpus=1), node(2, gpus=1, flavor="t4", pool=OTHER_POOL), node(3, gpus=1, flavor="l20"))
    world.snapshot.remove_node(node(3).id)
    (task,) = world.submit(request(count=1))
    assert [line.flavor for line in explained(world, task).admission] == [None, None, "a100"]


def test_explanation_when_the_task_could_start_now_then_says_so() -> None:
    world = World.of(node(1, gpus=1))
    (task,) = world.submit(request(count=1))
    told = explained(world, task)
    assert told.dominant is Reason.PLACEABLE
    assert told.would_unblock == ()


def test_explanation_when_others_are_guaranteed_what_is_free_then_says_so() -> None:
    pools = [virtual_pool(1, TENANT, cpu=Limit(borrow=64_000)), virtual_pool(2, RIVAL, cpu=Limit(guaranteed=60_000))]
    world = World.of(node(1, cpu=64_000), pools=pools)
    (task,) = world.submit(request(cpu=8_000))
    told = explained(world, task)
    assert told.dominant is Reason.GUARANTEE_OF_OTHERS
    assert told.would_unblock[0].action.startswith("raise the guarantee of cpu by 4 cores")


def test_explanation_when_matching_nodes_take_no_work_then_names_one_to_open() -> None:
    world = World.of(
        node(1, gpus=8, cordons=frozenset({CordonReason.OPERATOR})),
        node(2, gpus=8, state=NodeState.UNREACHABLE),
        node(3),
    )
    (task,) = world.submit(request(count=8))
    told = explained(world, task)
    assert told.dominant is Reason.CORDONED
    assert [one.action for one in told.would_unblock] == [
        "uncordon node n1 (operator)",
        "bring node n2 back (it is unreachable)",
    ]


def test_explanation_when_a_version_is_wrong_then_counts_nodes_per_attribute() -> None:
    old = Ecosystem(runtime="cuda", frameworks={"pytorch": "1.13"})
    world = World.of(node(1, gpus=1, ecosystem=old), node(2, gpus=1, ecosystem=old), node(3, ecosystem=Ecosystem()))
    needs = EcosystemRequirement(runtime=("cuda",), frameworks={"pytorch": ">=2"})
    (task,) = world.submit(request(ecosystem=needs))
    told = explained(world, task)
    assert told.dominant is Reason.INCOMPATIBLE_VERSION
    assert told.attributes == {"frameworks.pytorch": 2, "runtime": 1}


def test_explanation_when_no_empty_node_could_hold_the_task_then_says_so() -> None:
    world = World.of(node(1, cpu=4_000))
    (task,) = world.submit(request(cpu=10_000))
    told = explained(world, task)
    assert told.dominant is Reason.NOT_ENOUGH_CPU
    assert not told.could_ever_fit
    assert told.message.endswith("even with nothing running no node that takes work could hold it")
    assert told.would_unblock[0].action == "add a node that meets the request, or ask for less"


def test_explanation_when_a_node_is_kept_for_an_older_task_then_the_cycle_s_reason_is_told() -> None:
    world = World.of(node(1, gpus=2))
    (running,) = world.submit(request(count=1))
    world.run()
    world.submit(request(count=2))
    world.now_us = 10_000 * SECOND_US
    (task,) = world.submit(request(count=1))
    rejection = world.run().rejections[task]
    (queued,) = [one for one in world.queue if one.id == task]
    told = explain(world.snapshot, queued, world.states(), 2, rejection)
    assert told.dominant is Reason.EARMARKED
    assert running not in {one.id for one in world.queue}


def test_explanation_when_the_pool_is_empty_then_says_so() -> None:
    world = World.of()
    (task,) = world.submit(request(count=1, labels=(("a", "b"),)))
    told = explained(world, task)
    assert told.dominant is Reason.POOL_EMPTY
    assert told.nodes == 0


def test_explanation_when_the_pool_has_ten_thousand_nodes_then_takes_less_than_fifty_milliseconds() -> None:
    world = World.of(*(node(number, gpus=8) for number in range(1, 10_001)))
    world.submit(request(count=16))
    (queued,) = world.queue
    best = 1.0
    for attempt in range(3):
        wanted = replace(queued, request=replace(queued.request, cpu_milli=1_000 + attempt))
        begin = time.thread_time()
        told = explain(world.snapshot, wanted, world.states())
        best = min(best, time.thread_time() - begin)
    assert told.counts == {Reason.NOT_ENOUGH_DEVICES: 10_000}
    assert best < 0.05


def test_explanation_when_no_node_could_ever_hold_it_then_hardware_is_the_reason_and_not_the_limit() -> None:
    pools = [virtual_pool(1, TENANT, cpu=Limit(guaranteed=8_000))]
    world = World.of(node(1, cpu=64_000), pools=pools)
    (task,) = world.submit(request(cpu=65_000))
    told = explained(world, task)
    assert told.dominant is Reason.NOT_ENOUGH_CPU
    assert not told.could_ever_fit
    assert told.would_unblock[0].action.startswith("add a node")
    assert any(each.action.startswith("raise the limit of cpu") for each in told.would_unblock)


@pytest.mark.parametrize(
    ("resource", "amount", "words"),
    [
        ("cpu", 1000, "1 core"),
        ("cpu", 1500, "1.5 cores"),
        ("cpu", 1, "0.001 cores"),
        ("memory", 6144, "6 GiB"),
        ("memory", 6145, "6145 MiB"),
        ("memory", 0, "0 MiB"),
        ("device", 2000, "2 devices"),
        ("device", 250, "0.25 devices"),
    ],
)
def test_amount_in_words_when_told_to_people_then_exact_in_their_units(resource: str, amount: int, words: str) -> None:
    assert amount_in_words(resource, amount) == words
