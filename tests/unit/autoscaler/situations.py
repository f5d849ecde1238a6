"""Policies and situations for the autoscaler's rules: a quiet pool of nodes with eight devices, changed where told."""

from datetime import UTC, datetime, timedelta
from typing import Any

from millpond_autoscaler.domain.forecasts import NotEnoughData
from millpond_autoscaler.domain.situation import Candidate, Signals, Situation
from millpond_contracts.bodies.scaling import DemandShape, NodeTemplate, ScalingRules
from millpond_contracts.ids import NodeId, NodeOrderId

FLAVOR = "nvidia-a100-sxm4-80gb"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEMPLATE = NodeTemplate(model="A100 SXM4 80GB", devices=8, cpu_milli=64_000, memory_mib=524_288)


def rules(**fields: Any) -> ScalingRules:
    """The default rules with other numbers."""
    return ScalingRules(**fields)


def shape(tasks: int, devices: int = 1, milli: int = 1000, **fields: Any) -> DemandShape:
    """Tasks that wait, each for so many devices, and that simulated nodes serve."""
    values: dict[str, Any] = {"cpu_milli": 1000, "memory_mib": 1024, "flavors": (FLAVOR,), "simulated": True}
    return DemandShape(tasks=tasks, device_count=devices, device_milli=milli, **{**values, **fields})


def situation(**fields: Any) -> Situation:
    """Four nodes of ours, half held, everything known and long quiet."""
    values: dict[str, Any] = {
        "now": NOW,
        "held_milli": 16_000,
        "schedulable_milli": 32_000,
        "demand": (),
        "nodes": 4,
        "ordered": 0,
        "settling": 0,
        "releasing": 0,
        "cancellable": 0,
        "foreign": 0,
        "signals": Signals(expected=32, told=32, mean_ratio=0.4),
        "forecast": NotEnoughData(have_seconds=0, need_seconds=604_800),
        "low_since": NOW - timedelta(hours=1),
    }
    return Situation(**{**values, **fields})


def candidate(held_milli: int = 0, age_seconds: int = 3600) -> Candidate:
    """A node that could be released."""
    return Candidate(
        order=str(NodeOrderId.new()),
        node=str(NodeId.new()),
        held_milli=held_milli,
        joined_at=NOW - timedelta(seconds=age_seconds),
    )
