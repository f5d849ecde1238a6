"""Descriptions of simulated nodes: what they may say, and the words with which the rest is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from millpond_contracts.fleets import FleetFile, NodeEntry, find_catalogue_entry

pytestmark = pytest.mark.unit

HOST = {"cpu_milli": 96_000, "memory_mib": 786_432}


def entry(**more: Any) -> NodeEntry:
    return NodeEntry.model_validate({"name": "gpu", **HOST, **more})


def test_entry_when_it_counts_then_its_nodes_are_numbered_else_it_is_one() -> None:
    assert entry().node_names == ["gpu"]
    assert entry(count=1).node_names == ["gpu-0"]
    assert entry(count=3).node_names == ["gpu-0", "gpu-1", "gpu-2"]


def test_entry_when_only_the_model_is_given_then_one_device_of_the_catalogue() -> None:
    assert entry().device_count == 0
    assert entry(model="l40s").device_count == 1
    assert entry(model="L40S", devices=8).device_count == 8
    assert find_catalogue_entry("l40s").model == "L40S"
    assert find_catalogue_entry("NVIDIA H200", "nvidia").model == "H200 SXM5 141GB"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"model": "H1000"}, "no model of the accelerator catalogue"),
        ({"model": "L40S", "vendor": "amd"}, "no model of the accelerator catalogue"),
        ({"devices": 2}, "devices need a model"),
        ({"model": "G2", "unlisted": True}, "needs a vendor"),
        ({"name": "a" * 60, "count": 2_000}, "too long"),
        ({"cpu_milli": 0}, "greater than or equal to 1"),
        ({"boot_seconds": -1}, "greater than or equal to 0"),
        ({"gpu": 8}, "Extra inputs are not permitted"),
        ({"devices": 65, "model": "L40S"}, "less than or equal to 64"),
    ],
)
def test_entry_when_it_can_be_no_node_then_refused_with_the_reason(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        entry(**more)
    assert reason in str(refused.value)


def test_file_when_two_nodes_have_one_name_then_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        FleetFile.model_validate({"nodes": [{"name": "a", "count": 2, **HOST}, {"name": "a-1", **HOST}]})
    assert "two nodes are named a-1" in str(refused.value)


def test_file_when_shown_then_without_its_token() -> None:
    assert "secret" not in repr(FleetFile(join_token="secret-token"))
