"""The states of an order, pauses after failures, and signals added up in windows."""

import math
from datetime import timedelta
from pathlib import Path

import pytest

from millpond_autoscaler.domain.orders import LIVE, TRANSITIONS, IllegalTransition, pause_seconds, transition
from millpond_autoscaler.domain.signals import WINDOW_SECONDS, Windows
from millpond_autoscaler.providers.protocol import ProviderOrder, StockOut
from millpond_autoscaler.providers.simulated import NEVER_SECONDS, SimulatedNodes, describe
from millpond_contracts.bodies.scaling import NodeOrderState, SimulatedPlan
from millpond_contracts.ids import NodeOrderId, PoolId
from tests.unit.autoscaler.situations import FLAVOR, NOW, TEMPLATE

pytestmark = pytest.mark.unit


def test_states_when_listed_then_every_order_ends_and_what_ended_stays_so() -> None:
    assert {state for state in NodeOrderState if not TRANSITIONS[state]} == {
        NodeOrderState.RELEASED,
        NodeOrderState.FAILED,
    }
    assert set(LIVE) == set(NodeOrderState) - {NodeOrderState.RELEASED, NodeOrderState.FAILED}
    for state in LIVE:
        reached, before = {state}, set[NodeOrderState]()
        while reached != before:
            before = set(reached)
            reached |= {following for one in before for following in TRANSITIONS[one]}
        assert reached & {NodeOrderState.RELEASED, NodeOrderState.FAILED}, state


def test_transition_when_there_is_no_edge_then_refused() -> None:
    assert transition(NodeOrderState.RELEASING, NodeOrderState.JOINED) is NodeOrderState.JOINED
    with pytest.raises(IllegalTransition, match="may become provisioning, failed, not joined"):
        transition(NodeOrderState.REQUESTED, NodeOrderState.JOINED)
    with pytest.raises(IllegalTransition, match="may become nothing"):
        transition(NodeOrderState.RELEASED, NodeOrderState.RELEASING)


def test_readme_when_read_then_it_shows_the_edges_of_the_table() -> None:
    import millpond_autoscaler

    readme = Path(millpond_autoscaler.__file__).with_name("README.md").read_text(encoding="utf-8")
    shown = {
        (line.split(" --> ")[0].strip(), line.split(" --> ")[1].partition(":")[0].strip())
        for line in readme.splitlines()
        if " --> " in line and "[*]" not in line
    }
    assert shown == {(state.value, after.value) for state, found in TRANSITIONS.items() for after in found}


def test_pauses_when_failures_go_on_then_twice_as_long_up_to_a_bound() -> None:
    assert [pause_seconds(count) for count in (0, 1, 2, 3)] == [5.0, 5.0, 10.0, 20.0]
    assert pause_seconds(10_000) == 600.0


def _add(windows: Windows, pool: PoolId, value: float | None, *, target: str = "gpu-0", age: float = 0) -> None:
    windows.add(pool, FLAVOR, "utilization_ratio", ("node_1", target), NOW.timestamp(), [age], [value])


def test_a6_windows_when_values_are_missing_not_finite_or_stale_then_unknown_and_never_zero() -> None:
    pool, windows = PoolId.new(), Windows()
    for value in (None, math.nan, math.inf, -math.inf):
        _add(windows, pool, value)
    _add(windows, pool, 0.5, age=600)
    (found,) = windows.take_changed(NOW)
    assert (found.targets, found.samples, found.unknown) == (0, 4, 4)
    assert (found.mean, found.maximum) == (None, None)


def test_windows_when_samples_come_then_targets_mean_and_maximum_are_of_what_was_told() -> None:
    pool, windows = PoolId.new(), Windows()
    for target, value in (("gpu-0", 0.2), ("gpu-0", 0.4), ("gpu-1", 0.9), ("gpu-2", None)):
        _add(windows, pool, value, target=target)
    (found,) = windows.take_changed(NOW)
    assert (found.targets, found.samples, found.unknown) == (2, 4, 1)
    assert timedelta(0) <= NOW - found.window_at < timedelta(seconds=WINDOW_SECONDS)
    assert found.window_at.timestamp() % WINDOW_SECONDS == 0
    assert found.mean == pytest.approx(0.5)
    assert found.maximum == 0.9
    assert windows.take_changed(NOW) == []
    _add(windows, pool, 0.1, target="gpu-3")
    (more,) = windows.take_changed(NOW)
    assert (more.targets, more.samples) == (3, 5)
    windows.take_changed(NOW + timedelta(hours=1))
    assert windows.sums == {}


def _order(number: int = 1, **plan: object) -> ProviderOrder:
    template = TEMPLATE.model_copy(update={"simulated": SimulatedPlan.model_validate(plan)})
    return ProviderOrder(NodeOrderId.new(), number, template, "mpj_token")


async def test_simulated_nodes_when_ordered_released_and_repeated_then_one_file_each(tmp_path: Path) -> None:
    provider = SimulatedNodes(tmp_path / "orders")
    assert await provider.list_tags() == frozenset()
    await provider.release(NodeOrderId.new())
    order = _order()
    await provider.create(order)
    await provider.create(order)
    (tmp_path / "orders" / "other.json").write_text("{}")
    assert await provider.list_tags() == {order.id}
    assert [file.name for file in (tmp_path / "orders").glob("norder_*")] == [f"{order.id}.json"]
    await provider.release(order.id)
    await provider.release(order.id)
    assert await provider.list_tags() == frozenset()


async def test_simulated_nodes_when_the_plan_says_so_then_out_of_stock_and_machines_that_never_come(
    tmp_path: Path,
) -> None:
    provider = SimulatedNodes(tmp_path)
    first = _order(stock_nodes=1)
    await provider.create(first)
    with pytest.raises(StockOut, match="all 1 simulated machines"):
        await provider.create(_order(stock_nodes=1))
    await provider.release(first.id)
    await provider.create(_order(stock_nodes=1))
    assert describe(_order(2, boot_seconds=3, fail_orders=[2])).nodes[0].boot_seconds == NEVER_SECONDS
    assert describe(_order(3, boot_seconds=3, fail_orders=[2])).nodes[0].boot_seconds == 3
