"""The machine-readable contracts: openapi/`<service>.json` (OpenAPI 3.1) per service, `events.json` (JSON Schema)."""

import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from millpond_contracts.events import EVENT_TYPES, Envelope
from millpond_contracts.routes import SERVICES

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
    for service in SERVICES:
        app = load_app(service)
        if app is not None:
            yield FOLDER / f"{service}.json", _text(app.openapi())
    yield FOLDER / "events.json", _text(describe_events())


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
