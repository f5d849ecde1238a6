"""The dry run: what would start, in which ways, why not, and that nothing is left of it."""

from dataclasses import replace

import pytest

from millpond_contracts.bodies.tenants import Limit
from millpond_contracts.ids import JobId, NodeId, TaskId, VirtualPoolId
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.nodes import NodeRecord
from millpond_scheduler.domain.offers import AskedTask, DryRun, DryRunner
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import PLENTY, SECOND_US, World, contents, node, request, virtual_pool

pytestmark = pytest.mark.unit

FLAVORS = dict.fromkeys(("a100", "h100", "t4"), PLENTY)


def world_of(*nodes: NodeRecord, devices: dict[str, Limit] | None = None) -> World:
    return World.of(*nodes, pools=[virtual_pool(devices=devices or FLAVORS)])


def ask(world: World, wanted: RequestClass, times: int = 1, group: str = "main") -> list[AskedTask]:
    return [
        AskedTask(
            group,
            QueuedTask(TaskId.new(), JobId(int=1), VirtualPoolId(int=1), wanted, 50, world.now_us),
        )
        for _ in range(times)
    ]


def dry_run(world: World, asked: list[AskedTask]) -> DryRun:
    """One dry run; nothing may be left of it."""
    before = contents(world.snapshot)
    cache = CandidateCache(world.snapshot, distance=world.policy.distance)
    runner = DryRunner(
        world.snapshot,
        cache,
        world.states(),
        world.queue,
        world.now_us,
        world.policy,
        world.list_running,
        world.open_claims(),
    )
    found = runner.run(asked)
    assert contents(world.snapshot) == before
    return found


def h100(number: int, gpus: int = 8) -> NodeRecord:
    return node(number, gpus=gpus, flavor="h100", attributes=(("bf16_tflops", 989.0),))


def test_dry_run_when_two_flavors_fit_then_the_nearest_comes_first_and_the_other_is_offered_too() -> None:
    world = world_of(node(1, gpus=8), h100(2))
    first, second = dry_run(world, ask(world, request(count=2, minima=(("bf16_tflops", 300.0),)), 3)).offers
    assert (first.flavors, second.flavors) == (("a100",), ("h100",))
    assert first.distance_permille < second.distance_permille
    (part,) = first.parts
    assert (part.group, part.tasks, part.nodes, part.device_milli) == ("main", 3, (NodeId(int=1 << 65),), 2000)
    assert part.distance is not None
    assert [one.attribute for one in part.distance.parts] == ["bf16_tflops"]
    assert dict(part.ranks)["fewest_free_devices"] == 8000


def test_dry_run_when_only_a_part_starts_then_the_offer_counts_it_and_the_rest_is_explained() -> None:
    world = world_of(node(1, gpus=4))
    found = dry_run(world, ask(world, request(count=1), 6))
    (offer,) = found.offers
    assert (offer.waiting, offer.parts[0].tasks) == (2, 4)
    assert found.explanation is not None
    assert found.explanation.dominant is Reason.NOT_ENOUGH_DEVICES
    assert sum(found.explanation.counts.values()) == found.explanation.nodes == 1


def test_dry_run_when_nothing_can_start_then_no_offer_and_the_reason() -> None:
    world = world_of(node(1, gpus=4))
    found = dry_run(world, ask(world, request(count=8)))
    assert found.offers == ()
    assert found.explanation is not None
    assert not found.explanation.could_ever_fit


def test_dry_run_when_the_limit_lets_in_a_part_then_what_would_be_held_counts_against_it() -> None:
    world = world_of(node(1, gpus=8), devices={"a100": Limit(guaranteed=0, hard=3000)})
    found = dry_run(world, ask(world, request(count=1), 5))
    assert found.offers[0].waiting == 2
    assert found.explanation is not None
    assert found.explanation.dominant is Reason.LIMIT_REACHED
    line = next(line for line in found.explanation.admission if line.resource == "device")
    assert (line.used, line.limit, line.missing) == (3000, 3000, 1000)


def test_dry_run_when_groups_differ_then_each_is_a_part_and_only_devices_are_narrowed() -> None:
    world = world_of(node(1, gpus=8), h100(2), node(3, cpu=8_000))
    asked = ask(world, request(count=1), 2, "workers") + ask(world, request(cpu=2_000), 1, "driver")
    found = dry_run(world, asked)
    assert found.explanation is None
    for offer in found.offers:
        assert sorted((part.group, part.tasks) for part in offer.parts) == [("driver", 1), ("workers", 2)]
        driver = next(part for part in offer.parts if part.group == "driver")
        assert (driver.flavor, driver.distance, driver.nodes) == (None, None, (NodeId(int=3 << 65),))
    assert {offer.flavors for offer in found.offers} == {("a100",), ("h100",)}


def test_dry_run_when_a_node_is_kept_free_for_one_that_waited_longer_then_it_is_not_offered() -> None:
    world = world_of(node(1, gpus=8))
    world.submit(request(count=4))
    world.run()
    world.submit(request(count=8))  # waits for the whole node
    world.now_us += (world.policy.hold_after_seconds + 1) * SECOND_US
    found = dry_run(world, ask(world, request(count=1)))
    assert found.offers == ()
    assert found.explanation is not None
    assert found.explanation.dominant is Reason.EARMARKED


def test_dry_run_when_repeated_then_the_same() -> None:
    world = world_of(*(node(number, gpus=4) for number in range(1, 6)), h100(9))
    asked = ask(world, request(count=1), 7)
    assert dry_run(world, asked) == dry_run(world, asked)


def test_dry_run_when_a_group_comes_after_another_then_both_are_priced_and_only_the_first_starts_now() -> None:
    world = world_of(node(1, gpus=4))
    train = [replace(one, stage=1) for one in ask(world, request(count=4), group="train")]
    (offer,) = dry_run(world, [*ask(world, request(count=1), 3, group="prepare"), *train]).offers
    assert (offer.starts_now, offer.later, offer.waiting) == (3, 1, 0)
    assert [(part.group, part.tasks) for part in offer.parts] == [("prepare", 3), ("train", 1)]


def test_dry_run_when_the_first_group_cannot_start_then_there_is_no_offer_although_a_later_one_could() -> None:
    world = world_of(node(1, gpus=4))
    found = dry_run(world, [*ask(world, request(count=8)), replace(ask(world, request(count=1))[0], stage=1)])
    assert found.offers == ()
    assert found.explanation is not None
