"""Tallies add up and can be taken away again; the figures always sum to the total."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import DeviceHealth, Partitioning
from millpond_registry.domain.capacity import (
    Held,
    Tally,
    describe_drift,
    sum_tallies_of,
    tally_of,
    tell_devices,
    tell_hosts,
)
from millpond_registry.domain.devices import merge_devices
from millpond_registry.domain.nodes import Node
from tests.factories.registry import gpu, inventory

pytestmark = pytest.mark.unit

WHOLE = Partitioning()
DIVIDED = Partitioning(modes=("mig",), profiles=("1g.10gb", "3g.40gb"), current="mig")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def tallies(draw: st.DrawFn) -> Tally:
    """What one random node adds: any state, cordons, health and holdings, over-holdings included."""
    devices = merge_devices(
        (),
        [
            gpu(index, health=draw(st.sampled_from(DeviceHealth)), partitioning=draw(st.sampled_from([WHOLE, DIVIDED])))
            for index in range(draw(st.integers(0, 8)))
        ],
        lambda _: draw(st.sampled_from(["a", "b"])),
        NOW,
    )
    node = Node(
        id=NodeId.new(),
        pool_id=PoolId.new(),
        name="n",
        public_key=b"",
        state=draw(st.sampled_from([state for state in NodeState if state is not NodeState.REMOVED])),
        state_since=NOW,
        inventory=inventory(allocatable_cpu_milli=draw(st.integers(0, 256_000))),
        created_at=NOW,
        cordons=draw(st.frozensets(st.sampled_from(CordonReason), max_size=1)),
    )
    held = Held(
        cpu_milli=draw(st.integers(0, 300_000)),
        memory_mib=draw(st.integers(0, 20_000)),
        milli={device.id: draw(st.integers(0, 1_100)) for device in devices},
        slots={device.id: draw(st.integers(0, 255)) for device in devices},
    )
    return tally_of(node, devices, held, draw(st.sampled_from([1, 250, 300, 1000, 2000, 8000])))


@given(st.lists(tallies(), max_size=6))
def test_figures_when_nodes_are_summed_then_parts_equal_total(nodes: list[Tally]) -> None:
    pool = sum_tallies_of(nodes)
    for figures in tell_devices(pool):
        parts = (figures.unschedulable, figures.allocated, figures.reserved, figures.fragmented, figures.available)
        assert min(parts) >= 0
        assert sum(parts) == figures.total
        assert figures.fits["1000"] >= 2 * figures.fits["2x1000"] >= 4 * figures.fits["4x1000"]
    for host in tell_hosts(pool):
        assert min(host.unschedulable, host.allocated, host.available) >= 0
        assert host.unschedulable + host.allocated + host.reserved + host.available == host.total


@given(st.lists(tallies(), min_size=1, max_size=6), st.data())
def test_tally_when_a_node_changes_then_same_as_counted_afresh(nodes: list[Tally], data: st.DataObject) -> None:
    pool = sum_tallies_of(nodes)
    index, changed = data.draw(st.integers(0, len(nodes) - 1)), data.draw(tallies())
    moved = pool - nodes[index] + changed
    assert moved == sum_tallies_of([*nodes[:index], changed, *nodes[index + 1 :]])
    assert pool - sum_tallies_of(nodes) == Tally()


@given(tallies())
def test_tally_when_stored_as_json_then_read_back_equal(tally: Tally) -> None:
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally
    assert Tally.from_json({}) == Tally()


def test_drift_when_figures_differ_then_named_with_both_values() -> None:
    counted = Tally(nodes={"ready": 2, "schedulable": 1})
    assert describe_drift(replace(counted, nodes={"ready": 3}), counted) == (
        "nodes.ready: had 3, counted 2; nodes.schedulable: had 0, counted 1"
    )
    many = Tally(nodes={f"s{number}": 1 for number in range(7)})
    assert describe_drift(Tally(), many).endswith("; and 2 more")
