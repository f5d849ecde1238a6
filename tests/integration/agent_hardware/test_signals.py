"""Second-by-second signals end to end: one child that stays, is waited for, killed and started anew."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from millpond_contracts.resources import Signal
from millpond_node_agent.hardware.supervisor import HardwareSupervisor
from tests.factories.machines import MachineTree
from tests.integration.agent_hardware.conftest import StubEnvironment, Supervise

pytestmark = pytest.mark.integration

FIRST = "nvidia/GPU-00000000-0000-4000-8000-000000000000"
SECOND = "nvidia/GPU-00000000-0000-4000-8000-000000000001"


def by_name(signals: list[Signal], target: str) -> dict[str, float | None]:
    return {signal.name: signal.value for signal in signals if signal.target == target}


async def first_answer(supervisor: HardwareSupervisor, target: str) -> list[Signal]:
    """The first sample that has the target's utilisation: the child needs a moment to start."""
    for _ in range(40):
        signals = await supervisor.sample_signals(deadline_seconds=0.8)
        if by_name(signals, target)["power_w"] is not None:
            return signals
        await asyncio.sleep(0.05)
    raise AssertionError(f"no value for {target} in 40 samples")


async def test_sample_signals_when_devices_answer_then_gives_each_its_values(supervise: Supervise) -> None:
    supervisor = supervise(mode="ok")
    await supervisor.take_inventory()

    signals = await first_answer(supervisor, FIRST)

    assert by_name(signals, FIRST) == {
        "utilization_ratio": 0.37,
        "memory_utilization_ratio": pytest.approx(1031 / (81_559 - 480)),
        "memory_used_mib": 1031,
        "power_w": 112.5,
        "temperature_c": 41,
    }
    assert set(by_name(signals, SECOND)) == set(by_name(signals, FIRST))
    assert set(by_name(signals, "node")) == {"cpu_utilization_ratio", "memory_utilization_ratio", "memory_used_mib"}
    assert by_name(signals, "node")["memory_utilization_ratio"] == 0.5


async def test_sample_signals_when_sampled_again_then_one_child_serves_and_is_cheap(supervise: Supervise) -> None:
    supervisor = supervise(mode="ok")
    await supervisor.take_inventory()
    await first_answer(supervisor, FIRST)

    used = os.times()
    for _ in range(20):
        signals = await supervisor.sample_signals()
        assert by_name(signals, FIRST)["power_w"] == 112.5
    spent = os.times()

    assert spent.children_user - used.children_user < 0.05, "a child was started per sample"
    instants = [signal.at_monotonic_ms for signal in signals]
    assert instants[0] == max(instants)


async def test_case27_sample_signals_when_mig_is_on_then_utilisation_is_null_and_not_zero(supervise: Supervise) -> None:
    supervisor = supervise(mode="mig")
    await supervisor.take_inventory()

    values = by_name(await first_answer(supervisor, FIRST), FIRST)

    assert values["utilization_ratio"] is None
    assert values["memory_used_mib"] == 1031


async def test_h7_sample_signals_when_memory_is_not_supported_then_it_is_null(supervise: Supervise) -> None:
    supervisor = supervise(mode="unified")
    await supervisor.take_inventory()

    values = by_name(await first_answer(supervisor, FIRST), FIRST)

    assert values["memory_used_mib"] is None
    assert values["memory_utilization_ratio"] is None


@pytest.mark.parametrize("mode", ["lost_handle", "hang_call"])
async def test_h1_sample_signals_when_one_device_fails_then_it_is_null_and_the_others_are_told(
    supervise: Supervise, mode: str
) -> None:
    supervisor = supervise(mode=mode)
    second = (await supervisor.take_inventory(deadline_seconds=5)).devices[1].identity

    await first_answer(supervisor, FIRST)

    for _ in range(5):
        signals = await supervisor.sample_signals()
        assert by_name(signals, FIRST)["power_w"] == 112.5
        assert set(by_name(signals, second).values()) == {None}


async def test_sample_signals_when_the_driver_starts_slowly_then_the_first_answer_is_waited_for(
    supervise: Supervise,
) -> None:
    supervisor = supervise(mode="slow_init")
    await supervisor.take_inventory()

    early = await supervisor.sample_signals(deadline_seconds=0.3)
    later = await first_answer(supervisor, FIRST)

    assert set(by_name(early, FIRST).values()) == {None}
    assert by_name(later, FIRST)["power_w"] == 112.5


async def test_sample_signals_when_the_library_hangs_then_returns_nulls_at_the_deadline(
    machine: MachineTree, supervise: Supervise, stub_environment: StubEnvironment
) -> None:
    inventory = await supervise(mode="ok").take_inventory()
    hung = HardwareSupervisor(machine.root, environment=stub_environment(mode="hang_init"), previous=inventory)

    started = time.monotonic()
    signals = await hung.sample_signals(deadline_seconds=0.5)
    took = time.monotonic() - started
    await hung.close()

    assert took < 1.5
    assert set(by_name(signals, FIRST).values()) == {None}
    assert by_name(signals, "node")["memory_utilization_ratio"] == 0.5


async def test_release_devices_when_a_child_holds_the_library_then_ends_it_and_sampling_goes_on(
    supervise: Supervise,
) -> None:
    supervisor = supervise(mode="ok")
    await supervisor.take_inventory()
    await first_answer(supervisor, FIRST)

    await supervisor.release_devices()

    assert by_name(await first_answer(supervisor, FIRST), FIRST)["power_w"] == 112.5


async def test_sample_signals_on_this_machine_without_accelerator_gives_the_nodes_load() -> None:
    supervisor = HardwareSupervisor(Path("/"))
    await asyncio.sleep(0.1)

    signals = by_name(await supervisor.sample_signals(), "node")
    await supervisor.close()

    assert all(value is not None and value >= 0 for value in signals.values())
    assert 0 < (signals["memory_utilization_ratio"] or 0) <= 1
