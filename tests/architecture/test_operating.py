"""The operator's guide names commands that parse, metrics that exist, and explains every alert and every finding."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from prometheus_client.metrics import MetricWrapperBase
from typer.core import TyperGroup

from millpond.cli.main import app
from millpond_kernel import observability
from tests.architecture.tree import ROOT, python_files

pytestmark = pytest.mark.architecture

GUIDE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
FINDING = re.compile(r'(?:ALARMS\.labels\([^,)]+, |_alarm\()"(\w+)"')


def _commands() -> list[str]:
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    lines = [line.partition("#")[0].strip() for line in blocks.splitlines()]
    return sorted(
        {line for line in [*lines, *re.findall(r"`(millpond [^`]+)`", GUIDE)] if line.startswith("millpond ")}
    )


@pytest.mark.parametrize("line", _commands())
def test_command_of_the_guide_when_parsed_then_the_command_line_knows_it(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    words = shlex.split(line)
    name = words[0]
    command = typer.main.get_command(app)
    context = command.make_context(name, words[1:])
    while isinstance(command, TyperGroup):
        found, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert child is not None, line
        command, context = child, child.make_context(found, rest, parent=context)


def test_commands_of_the_guide_when_counted_then_there_are_many() -> None:
    assert len(_commands()) > 25


def test_rules_when_read_then_each_metric_and_label_exists() -> None:
    metrics = [each for each in vars(observability).values() if isinstance(each, MetricWrapperBase)]
    names = {"up"} | {
        f"{family.name}{ending}"
        for metric in metrics
        for family in metric.describe()
        for ending in {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
    }
    labels = {"le"} | {label for metric in metrics for label in metric._labelnames}
    assert len(RULES) >= 10
    for rule in RULES:
        used = set(re.findall(r"\b(millpond_\w+|up)\b", rule["expr"]))
        assert used
        assert used <= names, rule["alert"]
        grouped = {label for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in re.split(r",\s*", group)}
        assert grouped | set(re.findall(r'(\w+)[!=]~?="?', rule["expr"])) - {""} <= labels | {""}, rule["alert"]


def test_alerts_and_findings_when_compared_with_the_guide_then_each_is_explained_once() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE)
    raised = {kind for path in python_files("services") for kind in FINDING.findall(path.read_text(encoding="utf-8"))}
    assert len(raised) > 10
    assert sorted(explained) == sorted({rule["alert"] for rule in RULES} | raised)
