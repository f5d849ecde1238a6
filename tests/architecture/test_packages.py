"""A new package cannot stay outside the rules: packaging, import rules and READMEs know every one."""

import configparser
import tomllib
from functools import cache
from typing import Any

import pytest

from tests.architecture.tree import ROOT

pytestmark = pytest.mark.architecture

CONTRACTS_AND_KERNEL = {"millpond_contracts", "millpond_kernel"}


def _packages() -> dict[str, str]:
    """Name -> path in the repository, of every package of the product."""
    found = [*ROOT.glob("services/*/millpond_*/__init__.py"), *ROOT.glob("client/*/__init__.py")]
    return {path.parent.name: path.parent.relative_to(ROOT).as_posix() for path in found}


def _services() -> set[str]:
    return set(_packages()) - CONTRACTS_AND_KERNEL - {"millpond", "millpond_node_agent"}


@cache
def _import_rules() -> configparser.ConfigParser:
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter", encoding="utf-8")
    return rules


def _listed(contract: str, key: str) -> set[str]:
    return set(_import_rules()[f"importlinter:contract:{contract}"][key].split())


@cache
def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_packages_when_built_then_the_wheel_has_all_of_them() -> None:
    build = _project()["tool"]["hatch"]["build"]
    assert set(build["targets"]["wheel"]["packages"]) == set(_packages().values())
    assert set(build["dev-mode-dirs"]) == {path.rpartition("/")[0] for path in _packages().values()}


def test_packages_when_imports_are_checked_then_all_are_looked_at() -> None:
    assert set(_import_rules()["importlinter"]["root_packages"].split()) == set(_packages())


def test_services_when_imports_are_checked_then_each_is_independent_layered_and_pure() -> None:
    assert _listed("services", "modules") == _services()
    assert _listed("layers", "containers") == _services()
    assert _listed("services-outwards", "source_modules") == _services()
    assert {module.partition(".")[0] for module in _listed("pure-domain", "source_modules")} == _services()


def test_services_when_imports_are_checked_then_nothing_below_or_beside_may_name_them() -> None:
    for contract in ("contracts", "kernel", "client", "agent"):
        assert _services() <= _listed(contract, "forbidden_modules"), contract


def test_services_when_opened_then_a_readme_says_what_they_own() -> None:
    for name in sorted(_services() | {"millpond_node_agent"}):
        readme = ROOT / _packages()[name] / "README.md"
        assert readme.is_file(), readme
        assert "## Decisions behind it" in readme.read_text(encoding="utf-8"), readme
