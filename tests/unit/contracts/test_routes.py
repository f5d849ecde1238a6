"""The prefix table names one service per path and leaks nothing internal."""

import itertools

import pytest

from millpond_contracts.routes import SERVICES, prefixes_of, service_for_internal_path, service_for_path

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("/v1/jobs", "scheduler"),
        ("/v1/jobs/", "scheduler"),
        ("/v1/jobs/job_01k9/cancel", "scheduler"),
        ("/v1/work/assignments", "scheduler"),
        ("/v1/agent/session", "registry"),
        ("/v1/nodes/join", "registry"),
        ("/v1/me", "quota"),
        ("/v1/statements/stmt_1/lines", "billing"),
        ("/v1/events/billing", "billing"),
        ("/healthz/quota", "quota"),
        ("/readyz/registry", "registry"),
        ("/metrics/autoscaler", "autoscaler"),
        ("/openapi/registry.json", "registry"),
        ("/docs/quota", "quota"),
    ],
)
def test_service_for_path_when_a_prefix_matches_then_its_service(path: str, service: str) -> None:
    assert service_for_path(path) == service


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "v1/jobs",
        "/v1",
        "/v1/jobsmith",
        "/v1/Jobs",
        "/v1/events",
        "/v1/events/nobody",
        "/healthz",
        "/internal/v1/feed",
        "/v1/jobs/../../internal/v1/feed",
        "/v1/jobs/./x",
        "//v1/jobs",
    ],
)
def test_service_for_path_when_nothing_matches_then_none(path: str) -> None:
    assert service_for_path(path) is None


@pytest.mark.parametrize(
    ("path", "service"),
    [
        ("/internal/v1/events/billing", "billing"),
        ("/internal/v1/snapshot/registry/nodes", "registry"),
        ("/internal/v1/jwks/quota", "quota"),
        ("/internal/v1/tokens", "quota"),
        ("/internal/v1/events", None),
        ("/internal/v1/events/../tokens", None),
        ("/v1/jobs", None),
    ],
)
def test_service_for_internal_path_when_asked_then_only_what_services_serve_one_another(
    path: str, service: str | None
) -> None:
    assert service_for_internal_path(path) == service


def test_prefixes_when_compared_across_services_then_disjoint() -> None:
    for one, other in itertools.permutations(SERVICES, 2):
        for prefix, foreign in itertools.product(prefixes_of(one), prefixes_of(other)):
            assert not (foreign + "/").startswith(prefix + "/")
