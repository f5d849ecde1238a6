"""Settings and prices of a packing, and the choice among them by replays."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix, Packing, Price
from millpond_scheduler.domain.nodes import NodeSize
from millpond_scheduler.domain.scarcity import Scarcity, Setting, find_prices
from millpond_scheduler.simulation import tuning
from millpond_scheduler.simulation.filling import Filling
from millpond_scheduler.simulation.openb import History, run_openb
from millpond_scheduler.simulation.policies import POLICIES
from millpond_scheduler.simulation.traces import TraceJob, read_jobs, read_nodes
from tests.unit.scheduler.test_simulation import Files

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_setting_when_tuned_then_the_best_of_the_replays_is_taken(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [Setting(quantum, Scarcity(core)) for quantum in (40, 125) for core in (0, 5_000)]
    monkeypatch.setattr(tuning, "SETTINGS", tuple(settings))
    monkeypatch.setattr(tuning, "LEFT", (2,))
    assert files.simulate("--tune", "--seeds=1", "--processes=2") == 0
    report = json.loads(files.report.read_text(encoding="utf-8"))
    assert len(report["tuning"]) == 5, "the four, and the default"
    assert report["setting"] in report["tuning"]
    assert files.find_faults() == []
    nodes = read_nodes(files.nodes)
    tuned = tuning.tune(nodes, read_jobs(files.jobs, nodes), POLICIES["default"], 1)
    assert (tuned.setting.name, tuned.scores) == (report["setting"], report["tuning"])
    assert files.simulate("--tune", "--policy=random") == 2


def test_settings_when_they_come_to_the_same_prices_then_one_of_them_is_played(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = read_nodes(files.nodes)
    free, device = Scarcity(), Scarcity(device=200_000)
    settings = (Setting(40, free), Setting(40, device), Setting(40, Scarcity(core=2_000)))
    monkeypatch.setattr(tuning, "SETTINGS", settings)
    anywhere = [TraceJob("a", 1_000, 0, 1, 1000)] * 40
    insisting = [TraceJob("b", 1_000, 0, 1, 1000, frozenset({"T4"}))] * 40
    policy = POLICIES["default"]
    assert tuning.tune(nodes, anywhere, policy, 1).settings == (policy.setting, settings[0], settings[2])
    assert tuning.tune(nodes, insisting, policy, 1).settings == (policy.setting, *settings)
    assert tuning.tune(nodes, anywhere, policy.tuned(settings[1]), 1).settings == (settings[1], settings[2])


def test_tune_when_histories_disagree_then_the_best_mean_of_those_left_is_taken(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [Setting(quantum, Scarcity()) for quantum in (40, 100, 500)]
    scores = {1: (95.0, 90.0, 94.0), 2: (91.0, 99.0, 93.0)}

    def play(
        _nodes: object, _jobs: object, _policy: object, parts: Sequence[Sequence[Setting]], history: int, index: int
    ) -> list[float]:
        return [scores[history][settings.index(setting)] for setting in parts[index]]

    monkeypatch.setattr(tuning, "SETTINGS", tuple(settings))
    monkeypatch.setattr(tuning, "LEFT", (2,))
    monkeypatch.setattr(tuning, "_play", play)
    nodes, policy = read_nodes(files.nodes), POLICIES["default"]
    jobs = read_jobs(files.jobs, nodes)
    tuned = tuning.tune(nodes, jobs, policy.tuned(settings[0]), 1)
    assert tuned.setting == settings[2], "the second was not left, and the first is worse over both"
    assert tuned.scores == {settings[0].name: 93.0, settings[1].name: 90.0, settings[2].name: 93.5}
    tuned = tuning.tune(nodes, jobs, policy.tuned(settings[1]), 1)
    assert tuned.scores[settings[1].name] == 94.5, "what the others are compared with is always played as often"


def test_tune_when_all_settings_are_equal_then_the_policys_own_stays(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = POLICIES["default"].setting
    monkeypatch.setattr(tuning, "SETTINGS", (Setting(own.quantum_milli + 1), own))
    nodes = read_nodes(files.nodes)
    jobs = [TraceJob("a", 1_000, 0, 1, 1000)] * 40
    assert tuning.tune(nodes, jobs, POLICIES["default"], 1).setting == own


@pytest.mark.parametrize("setting", [Setting(), Setting(40, Scarcity(core=5_000, device=200_000))])
def test_filling_when_played_again_then_as_much_is_allocated_as_in_a_run_of_its_own(
    files: Files, setting: Setting
) -> None:
    nodes = read_nodes(files.nodes)
    jobs = read_jobs(files.jobs, nodes) * 3
    policy, loads = POLICIES["default"], (50, 95, 130)
    filling = Filling(nodes, jobs, policy, 7)
    filling.play(Setting(500, Scarcity(device=900_000)), loads)
    points = run_openb(nodes, jobs, policy.tuned(setting), History.JOBS, 7).points
    expected = {point.load_percent: point.allocation_percent for point in points if point.load_percent in loads}
    assert filling.play(setting, loads) == expected


LEAN, RICH, BARE = NodeSize("g2", 8, 96_000, 1), NodeSize("t4", 2, 104_000, 1), NodeSize(None, 0, 64_000, 1)
ANYWHERE, ON_T4 = DemandClass(1_000, 1, 1_000, ("g2", "t4")), DemandClass(1_000, 1, 1_000, ("t4",))


def test_prices_when_some_nodes_are_short_of_cpu_then_cores_cost_there_and_devices_elsewhere() -> None:
    mix = DemandMix(((ANYWHERE, 10),))
    # 20 cores beside a device on the average: a task that needs as many costs the same on both.
    expected = {LEAN: Price(core=2_000), RICH: Price(device=40_000)}
    assert find_prices({LEAN: 10, RICH: 10, BARE: 10}, mix, Scarcity(core=2_000)) == expected
    assert find_prices({LEAN: 100, RICH: 101}, mix, Scarcity(core=2_000)) == expected, "one node more is no news"
    assert find_prices({LEAN: 10, RICH: 10}, mix, Scarcity()) == {}


@pytest.mark.parametrize(("cpu_alone", "device"), [(0, 40_000), (150_000, 30_000), (250_000, 10_000), (300_000, 0)])
def test_prices_when_tasks_without_devices_leave_little_cpu_then_devices_cost_less_beside_it(
    cpu_alone: int, device: int
) -> None:
    # 100 tasks take all devices, with 1,700 of 2,000 cores; the tasks without devices that come with ten of them, more.
    mix = DemandMix(((DemandClass(17_000, 1, 1_000, ("g2", "t4")), 10),), cpu_alone_milli=cpu_alone // 10)
    expected = {LEAN: Price(core=2_000), RICH: Price(device=device)}
    found = find_prices({LEAN: 10, RICH: 10}, mix, Scarcity(core=2_000))
    assert found == {size: price for size, price in expected.items() if price != Price()}
    bare = {LEAN: 10, RICH: 10, BARE: 10}
    assert find_prices(bare, mix, Scarcity(core=2_000))[RICH] == Price(device=40_000), "there is room without devices"


@pytest.mark.parametrize(("counts", "mix"), [({LEAN: 1, BARE: 5}, (ANYWHERE, 1)), ({BARE: 10}, (ANYWHERE, 1))])
def test_prices_when_nodes_do_not_differ_then_nothing_costs(
    counts: dict[NodeSize, int], mix: tuple[DemandClass, int]
) -> None:
    assert find_prices(counts, DemandMix((mix,)), Scarcity(2_000, 2_000)) == {}
    assert Setting().pack({LEAN: 10, RICH: 10}, DemandMix()) == Packing(), "nothing came yet"


def test_prices_when_tasks_insist_on_a_flavor_then_its_devices_cost() -> None:
    # 20 devices of t4 and 80 of g2; in the first mix nobody insists, in the others some do.
    counts = {LEAN: 10, RICH: 10}
    for insisting, price in ((0, None), (1, 400), (3, 1_000)):
        mix = DemandMix(((ANYWHERE, 10 - insisting), (ON_T4, insisting)))
        found = find_prices(counts, mix, Scarcity(device=1_000))
        assert found == ({} if price is None else {RICH: Price(device=price)})
