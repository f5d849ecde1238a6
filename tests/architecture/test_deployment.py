"""The compose file, its proxy and its Prometheus say what the prefix table and the services say."""

import re
from functools import cache
from typing import Any

import pytest
import yaml

from millpond_contracts.routes import SERVICES, prefixes_of, service_for_path
from millpond_kernel.migrate import service_role
from tests.architecture.tree import ROOT
from tools.build_proxy import PROXY_FILE, render

pytestmark = pytest.mark.architecture

PUBLISHED = {"proxy", "prometheus"}
VARIABLE = re.compile(r"`(MILLPOND_\w+)`")


@cache
def _containers() -> dict[str, dict[str, Any]]:
    containers: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    return containers


def _present() -> list[str]:
    return [service for service in SERVICES if any(ROOT.glob(f"services/*/millpond_{service}/__init__.py"))]


def _service_keys(container: dict[str, Any]) -> set[str]:
    return {key for key in container.get("environment", {}) if key.endswith("_SERVICE_KEY")}


def _proxied_to(path: str) -> str | None:
    """The service to which deploy/proxy.conf passes `path`, by its own regular expressions."""
    locations = re.findall(r"location ~ (\S+) \{\s+set \$upstream (\w+)-http:8000;", PROXY_FILE.read_text("utf-8"))
    assert locations
    return next((service for pattern, service in locations if re.search(pattern, path)), None)


def test_proxy_file_when_compared_with_the_prefix_table_then_no_drift() -> None:
    assert PROXY_FILE.read_text("utf-8") == render(), "run `make openapi` and commit deploy/proxy.conf"


def test_proxy_when_asked_for_any_path_then_it_agrees_with_the_prefix_table() -> None:
    paths = [
        prefix + tail for service in _present() for prefix in prefixes_of(service) for tail in ("", "/", "/x/y", "x")
    ]
    for path in [*paths, "/", "/internal/v1/feed", "/v1", "/v1/nothing", "/healthz"]:
        assert _proxied_to(path) == service_for_path(path), path


def test_compose_when_read_then_every_service_has_its_two_processes() -> None:
    for service in _present():
        for process in ("http", "worker"):
            command = _containers()[f"{service}-{process}"]["command"]
            assert command[:4] == ["python", "-m", "millpond_kernel.serve", process]
            assert command[4:6] == ["--services", service]


def test_compose_when_read_then_every_wait_names_a_container_that_can_satisfy_it() -> None:
    for name, container in _containers().items():
        for awaited, wait in container.get("depends_on", {}).items():
            assert awaited in _containers(), f"{name} waits for {awaited}"
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in _containers()[awaited], f"{name} waits for the health of {awaited}"


def test_compose_when_read_then_each_service_connects_as_its_own_role_and_knows_no_other() -> None:
    for service in _present():
        for name, container in _containers().items():
            if name.startswith(f"{service}-"):
                urls = {key: url for key, url in container["environment"].items() if key.endswith("_DATABASE_URL")}
                assert list(urls) == [f"MILLPOND_{service.upper()}_DATABASE_URL"], name
                assert all(url.startswith(f"postgresql://{service_role(service)}:") for url in urls.values()), name


def test_compose_when_read_then_each_process_holds_its_own_service_key_and_the_bootstrap_all() -> None:
    keys = {name: _service_keys(container) for name, container in _containers().items()}
    for service in _present():
        own = {f"MILLPOND_{service.upper()}_SERVICE_KEY"}
        assert all(held == own for name, held in keys.items() if name.startswith(f"{service}-")), service
    assert keys["bootstrap"] == {f"MILLPOND_{service.upper()}_SERVICE_KEY" for service in _present()}


def test_compose_when_read_then_only_the_proxy_and_prometheus_are_published() -> None:
    assert {name for name, container in _containers().items() if "ports" in container} == PUBLISHED


def test_prometheus_when_read_then_it_scrapes_every_http_process_by_its_own_path() -> None:
    jobs = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    scraped = {(job.get("metrics_path"), tuple(job["static_configs"][0]["targets"])) for job in jobs}
    assert scraped == {(f"/metrics/{service}", (f"{service}-http:8000",)) for service in _present()} | {
        (None, tuple(f"{service}-worker:9100" for service in _present()))
    }


def test_prometheus_when_it_scrapes_workers_then_they_listen_where_it_looks() -> None:
    for service in _present():
        command = _containers()[f"{service}-worker"]["command"]
        assert command[6:] == ["--host", "0.0.0.0", "--metrics-port", "9100"]


@pytest.mark.parametrize(
    ("variable", "containers"),
    [
        ("MILLPOND_SCHEDULER_LOG_FOLDER", ("scheduler-http", "scheduler-worker")),
        ("MILLPOND_BILLING_EXPORT_FOLDER", ("billing-http", "billing-celery")),
    ],
)
def test_compose_when_read_then_processes_that_share_a_folder_share_its_volume(
    variable: str, containers: tuple[str, str]
) -> None:
    places = set()
    for name in containers:
        folder = _containers()[name]["environment"][variable]
        mounts = (volume.split(":") for volume in _containers()[name]["volumes"])
        places.add((folder, next(source for source, target in mounts if folder.startswith(target + "/"))))
    assert len(places) == 1


def test_compose_when_read_then_every_variable_is_one_that_a_process_reads() -> None:
    read = set(VARIABLE.findall((ROOT / "docs" / "settings.md").read_text("utf-8")))
    read |= {"MILLPOND_OWNER_DATABASE_URL", "MILLPOND_OPERATOR_KEY"}  # of the migration and of the bootstrap
    given = {key for container in _containers().values() for key in container.get("environment", {})}
    assert {key for key in given if key.startswith("MILLPOND_")} - read == set()
