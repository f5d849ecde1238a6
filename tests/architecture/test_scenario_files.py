"""Every resource of the API is told by a scenario, so that its behaviour can be read."""

import json
import re

import pytest

from millpond_contracts.routes import SERVICES
from tests.architecture.tree import ROOT

pytestmark = pytest.mark.architecture

_CALL = re.compile(r"call: (GET|POST|PUT|PATCH|DELETE) (/\S+)")


def _described() -> dict[str, str]:
    """`METHOD /path` with `{}` for parameters -> the service that describes it."""
    found: dict[str, str] = {}
    for service in SERVICES:
        file = ROOT / "openapi" / f"{service}.json"
        if file.is_file():
            for path, operations in json.loads(file.read_text(encoding="utf-8"))["paths"].items():
                found |= {f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}": service for method in operations}
    return found


def _called() -> set[tuple[str, str]]:
    """(method, path without its query) of every call of a scenario."""
    files = sorted((ROOT / "tests" / "scenarios").glob("*.yaml"))
    assert files
    return {
        (method, path.partition("?")[0])
        for file in files
        for method, path in _CALL.findall(file.read_text(encoding="utf-8"))
    }


def test_routes_when_counted_then_a_scenario_calls_each_resource() -> None:
    called = _called()
    untold = []
    for route, service in sorted(_described().items()):
        method, _, template = route.partition(" ")
        shape = re.compile(re.escape(template).replace(re.escape("{}"), r"[^/]+") + "$")
        if not any(method == other and shape.match(path) for other, path in called):
            untold.append(f"{service}: {route}")
    assert untold == []
