"""Generated documents have no drift, decision records have one number each and are listed, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, python_files, shown

pytestmark = pytest.mark.architecture

RECORDS = ROOT / "docs" / "decisions"
SHARED = ROOT / "services" / "shared"
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)")
CITED = re.compile(r"\b[Dd]ecisions? (\d{1,3}(?:(?:, | and | to )\d{1,3})*)\b")


def _documents() -> list[Path]:
    folders = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "services").rglob("*.md")]
    return sorted(folders)


def test_decision_records_when_listed_then_each_has_its_number_and_is_in_the_index() -> None:
    records = sorted(path.name for path in RECORDS.glob("[0-9]*.md"))
    index = (RECORDS / "README.md").read_text(encoding="utf-8")
    numbers = [name[:4] for name in records]
    assert len(records) >= 34
    assert len(set(numbers)) == len(numbers)
    assert [name for name in records if f"]({name})" not in index] == []


def test_decisions_when_cited_by_number_then_there_is_a_record() -> None:
    numbers = {int(path.name[:4]) for path in RECORDS.glob("[0-9]*.md")}
    files = [*_documents(), *python_files("services", "client", "tests", "migrations", "tools")]
    unknown = [
        f"{shown(path)}: {cited}"
        for path in files
        for cited in CITED.findall(path.read_text(encoding="utf-8"))
        if not {int(number) for number in re.findall(r"\d+", cited)} <= numbers
    ]
    assert unknown == []


def test_architecture_when_read_then_it_names_every_module_of_kernel_and_contracts() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [*SHARED.glob("millpond_kernel/[a-z]*.py"), *SHARED.glob("millpond_contracts/[a-z]*.py")]
    assert len(modules) > 30
    assert [shown(path) for path in modules if not re.search(rf"\b{path.stem}\b", page)] == []


def test_links_when_followed_then_they_lead_to_a_file() -> None:
    dead = [
        f"{shown(document)} -> {target}"
        for document in _documents()
        for target in LINK.findall(document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert dead == []


def test_generated_documents_when_built_again_then_no_drift() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "tools.generate", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
