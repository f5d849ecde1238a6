"""Writes the machine-readable contracts: `<service>.json` (OpenAPI 3.1) per service, and `events.json` (JSON Schema).

Nothing is connected to. `--check` writes nothing and fails with the names of the files that are out of date.
"""

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from millpond_contracts.events import EVENT_TYPES, Envelope
from millpond_contracts.routes import SERVICES

FOLDER = Path(__file__).resolve().parent


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


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file name, document) of everything generated here."""
    for service in SERVICES:
        app = load_app(service)
        if app is not None:
            yield f"{service}.json", app.openapi()
    yield "events.json", describe_events()


def main() -> int:
    """Writes or checks the files; the exit status is 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when a file is out of date")
    check = parser.parse_args().check
    stale = []
    for name, document in documents():
        path, text = FOLDER / name, json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale.append(f"openapi/{name}")
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run `make openapi` and commit the result\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
