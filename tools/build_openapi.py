"""The machine-readable contracts: openapi/`<service>.json` (OpenAPI 3.1) per service, `portal.json` (what a tenant's
keys may call, of all services in one document) and `events.json` (JSON Schema).
"""

import importlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.events import EVENT_TYPES, Envelope
from millpond_contracts.routes import SERVICES

PORTAL = "What a tenant's own keys may call: the documents of all services in one, without what operators and nodes do."
TENANT_ROLES = frozenset({Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER})
# Routes without a list of roles that tenants use: one makes a token from a key, the other tells who they are.
OPEN_TO_TENANTS = ("/v1/tokens", "/v1/me")
_REFERENCE = re.compile(r"#/components/schemas/([^\"]+)")

FOLDER = Path(__file__).resolve().parents[1] / "openapi"


def load_app(service: str) -> FastAPI | None:
    """The application of a service as it is described, or None where the service does not exist in this tree."""
    if importlib.util.find_spec(f"millpond_{service}") is None:
        return None
    settings = importlib.import_module(f"millpond_{service}.settings").Settings
    app: FastAPI = importlib.import_module(f"millpond_{service}.app").create_app(
        settings(database_url="postgresql://nobody@nowhere/none")
    )
    return app


def describe_portal(documents: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """One document of all that a tenant's own keys may call, to generate a portal's client from.

    Raises:
        ValueError: two services use one name for different things.
    """
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for service, document in documents.items():
        for path, operations in document["paths"].items():
            kept = {method: found for method, found in operations.items() if _is_of_tenants(path, found)}
            if kept:
                paths[path] = kept
        for name, schema in document["components"]["schemas"].items():
            if schemas.setdefault(name, schema) != schema:
                raise ValueError(f"{service} means something else by the schema {name} than another service does")
    names = [found["operationId"] for operations in paths.values() for found in operations.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"operations of one name: {', '.join(twice)}; give their functions different ones")
    security = next(iter(documents.values()))["components"]["securitySchemes"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millpond for tenants", "version": "1", "description": PORTAL},
        "paths": paths,
        "components": {"schemas": _reached(paths, schemas), "securitySchemes": security},
    }


def _is_of_tenants(path: str, operation: Mapping[str, Any]) -> bool:
    roles = operation.get("x-millpond-roles")
    return bool(TENANT_ROLES.intersection(roles)) if roles else path in OPEN_TO_TENANTS


def _reached(paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas that paths refer to, or that those refer to."""
    found: set[str] = set()
    waiting = [json.dumps(paths)]
    while waiting:
        names = set(_REFERENCE.findall(waiting.pop())) - found
        found |= names
        waiting += [json.dumps(schemas[name]) for name in names]
    return {name: schemas[name] for name in sorted(found)}


def describe_events() -> dict[str, Any]:
    """The JSON Schema of every event's body by its type, and of the envelope around it."""
    models: list[type[BaseModel]] = [*EVENT_TYPES.values(), Envelope]
    references, definitions = models_json_schema([(model, "serialization") for model in models])
    events = {name: references[(model, "serialization")] for name, model in sorted(EVENT_TYPES.items())}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Millpond events",
        "description": "What `/v1/events/<service>` sends: an envelope whose `body` has the schema of its `type`.",
        "envelope": references[(Envelope, "serialization")],
        "events": events,
        "$defs": definitions["$defs"],
    }


def files() -> Iterator[tuple[Path, str]]:
    """(path, text) of every document."""
    applications = {service: app for service in SERVICES if (app := load_app(service)) is not None}
    documents = {service: app.openapi() for service, app in applications.items()}
    for service, document in documents.items():
        yield FOLDER / f"{service}.json", _text(document)
    yield FOLDER / "portal.json", _text(describe_portal(documents))
    yield FOLDER / "events.json", _text(describe_events())


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
