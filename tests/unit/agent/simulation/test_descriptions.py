"""What a fleet shall consist of, read from files that come, change, break and go."""

import json
from pathlib import Path
from typing import Any

import pytest

from millpond_node_agent.observability import configure_logging
from millpond_node_agent.simulation.descriptions import (
    DescriptionRefused,
    Descriptions,
    count_nodes,
    parse_text,
    read_example,
)

pytestmark = pytest.mark.unit

NODE = {"name": "a", "cpu_milli": 1000, "memory_mib": 1024}


def write(path: Path, *nodes: dict[str, Any], **more: Any) -> Path:
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps({"nodes": nodes, **more}))
    return scratch.replace(path)


def test_file_when_yaml_or_json_then_the_same_nodes(tmp_path: Path) -> None:
    (tmp_path / "y.yaml").write_text("nodes:\n  - {name: a, count: 2, cpu_milli: 1000, memory_mib: 1024, zone: z1}\n")
    write(tmp_path / "j.json", {**NODE, "count": 2, "zone": "z1"})
    found = Descriptions([str(tmp_path)]).read()
    assert list(found) == ["j.a-0", "j.a-1", "y.a-0", "y.a-1"]
    assert found["j.a-1"].entry == found["y.a-1"].entry
    assert (found["j.a-1"].entry.name, found["j.a-1"].entry.count) == ("a-1", None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nodes: [", "neither YAML nor JSON"),
        ("- a", "expected `nodes:`"),
        ("nodes: [{name: a, memory_mib: 1}]", "nodes.0.cpu_milli: Field required"),
        ("nodes: [{name: a, cpu_milli: 1, memory_mib: 1, model: H1000}]", "nodes.0: 'H1000' is no model"),
        ("nodes: [{name: A, cpu_milli: 1, memory_mib: 1}]", "nodes.0.name"),
        ("node: []", "node: Extra inputs"),
    ],
)
def test_file_when_wrong_then_refused_with_the_place(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(DescriptionRefused) as refused:
        parse_text(text, "here.yaml")
    assert f"here.yaml: {reason}" in str(refused.value)
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(DescriptionRefused):
        Descriptions([str(path)])


def test_file_when_no_yaml_then_the_reason_names_the_line_and_never_shows_it() -> None:
    with pytest.raises(DescriptionRefused) as refused:
        parse_text('nodes: []\njoin_token: mpj_secret"\n  x: [mpj_secret\n', "here.yaml")
    assert "in line 3" in str(refused.value)
    assert "mpj_secret" not in str(refused.value)


def test_path_when_not_there_then_refused(tmp_path: Path) -> None:
    with pytest.raises(DescriptionRefused):
        Descriptions([str(tmp_path / "nothing")])


def test_folder_when_files_come_change_and_go_then_so_do_their_nodes(tmp_path: Path) -> None:
    descriptions = Descriptions([str(tmp_path)])
    assert descriptions.read() == {}
    (tmp_path / "notes.txt").write_text("nodes: []")
    (tmp_path / ".b.json").write_text("half a fi")
    write(tmp_path / "b.json", NODE, join_token="token-of-b")
    assert [(key, node.join_token) for key, node in descriptions.read().items()] == [("b.a", "token-of-b")]
    write(tmp_path / "b.json", {**NODE, "cpu_milli": 2000})
    assert descriptions.read()["b.a"].entry.cpu_milli == 2000
    (tmp_path / "b.json").unlink()
    assert descriptions.read() == {}


def test_file_when_it_breaks_then_told_once_and_what_it_said_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging()
    path = write(tmp_path / "b.json", NODE)
    descriptions = Descriptions([str(tmp_path)])
    before = descriptions.read()
    path.write_text("{")
    assert [descriptions.read(), descriptions.read()] == [before, before]
    refusals = [line for line in capsys.readouterr().err.splitlines() if "fleet_file_refused" in line]
    assert len(refusals) == 1
    write(path, {**NODE, "count": 2})
    assert list(descriptions.read()) == ["b.a-0", "b.a-1"]


def test_names_when_two_files_share_a_stem_then_the_first_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging()
    write(tmp_path / "b.json", NODE)
    (tmp_path / "b.yaml").write_text("nodes: [{name: a, cpu_milli: 5000, memory_mib: 1}]")
    assert [node.entry.cpu_milli for node in Descriptions([str(tmp_path)]).read().values()] == [1000]
    assert "another file is called b" in capsys.readouterr().err


def test_openb_when_whole_then_the_trace_and_when_sampled_then_its_mix() -> None:
    whole = read_example("openb")
    devices = sum((entry.count or 1) * entry.device_count for entry in whole.nodes)
    assert (count_nodes(whole), devices) == (1523, 6212)
    assert sum((entry.count or 1) * entry.cpu_milli for entry in whole.nodes if entry.devices) == 107_018_000
    some = read_example("openb:30")
    assert count_nodes(some) == 30
    assert {entry.vendor for entry in some.nodes} == {"nvidia", None}
    assert count_nodes(read_example("openb:9999")) == 1523
