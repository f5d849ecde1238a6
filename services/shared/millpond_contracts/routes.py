"""Which service answers which path: the prefix table that every proxy and every embedded stack is built from.

The prefixes are disjoint, so any reverse proxy joins the services under one base URL. Paths below `/internal/` have a
function of their own: they are for services only and no proxy may carry them.

Source: docs/decisions/0026-one-prefix-table.md.
"""

from collections.abc import Mapping
from types import MappingProxyType

SERVICE_NOUNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "registry": ("pools", "nodes", "devices", "flavors", "accelerators", "join-tokens", "agent"),
        "quota": ("tenants", "projects", "members", "api-keys", "tokens", "me", "virtual-pools", "reservations"),
        "scheduler": ("jobs", "tasks", "plans", "allocations", "queues", "packings", "usage", "work"),
        "autoscaler": (
            "scaling-policies",
            "scaling-decisions",
            "node-orders",
            "signals",
            "forecasts",
            "warm-pools",
            "calendars",
            "simulations",
        ),
        "billing": ("price-books", "charges", "statements", "exports", "budgets", "reports", "reconciliations"),
    }
)
"""Service -> the nouns it serves under `/v1/`."""

SERVICES: tuple[str, ...] = tuple(SERVICE_NOUNS)

PER_SERVICE_PREFIXES: tuple[str, ...] = ("/v1/events", "/v1/audit", "/healthz", "/readyz", "/metrics", "/docs")
"""Each is followed by the service's name: `/healthz/registry`."""

_INTERNAL_PREFIXES = ("/internal/v1/events", "/internal/v1/snapshot", "/internal/v1/jwks")
_TOKEN_EXCHANGE = "/internal/v1/tokens"


def prefixes_of(service: str) -> tuple[str, ...]:
    """Every path prefix that `service` answers, without a trailing slash.

    Raises:
        KeyError: no service has this name.
    """
    nouns = tuple(f"/v1/{noun}" for noun in SERVICE_NOUNS[service])
    return (*nouns, *(f"{prefix}/{service}" for prefix in PER_SERVICE_PREFIXES), f"/openapi/{service}.json")


_SERVICE_BY_PREFIX: Mapping[str, str] = MappingProxyType(
    {prefix: service for service in SERVICES for prefix in prefixes_of(service)}
)
_SERVICE_BY_INTERNAL_PREFIX: Mapping[str, str] = MappingProxyType(
    {f"{prefix}/{service}": service for service in SERVICES for prefix in _INTERNAL_PREFIXES}
    | {_TOKEN_EXCHANGE: "quota"}
)
_LONGEST_PREFIX_SEGMENTS = 4


def service_for_path(path: str) -> str | None:
    """The service that answers `path`, or None where no public route starts like this.

    Args:
        path: a decoded URL path without the query, such as `/v1/jobs/job_01k9/cancel`.
    """
    return _match(path, _SERVICE_BY_PREFIX)


def service_for_internal_path(path: str) -> str | None:
    """The service that answers `path` below `/internal/`, or None.

    Only for a listener that nobody but the services can reach.
    """
    return _match(path, _SERVICE_BY_INTERNAL_PREFIX)


def _match(path: str, table: Mapping[str, str]) -> str | None:
    segments = path.split("/")[1:]
    # A path that climbs could leave its prefix after it was matched, for example into /internal/.
    if not path.startswith("/") or ".." in segments or "." in segments:
        return None
    for length in range(min(len(segments), _LONGEST_PREFIX_SEGMENTS), 0, -1):
        service = table.get("/" + "/".join(segments[:length]))
        if service is not None:
            return service
    return None
