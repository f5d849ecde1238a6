"""What OpenAPI says about every service alike: errors are problem documents, credentials are bearer credentials."""

from typing import Any

from fastapi import FastAPI

from millpond_contracts.bodies.shapes import FieldProblem, Problem

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}

# Given to FastAPI, these also replace its own description of validation errors, which are not what is sent.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request was refused; nothing was changed", "content": _PROBLEM},
    "5XX": {"description": "The request could not be served now; Retry-After tells when to try again"}
    | {"content": _PROBLEM},
}

_REQUIRED_HEADERS = frozenset({"Idempotency-Key", "If-Match"})


def describe(app: FastAPI) -> None:
    """Completes the OpenAPI document of `app` with the schemas that the problem responses refer to."""
    build = app.openapi

    def described() -> dict[str, Any]:
        document = build()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in (Problem, FieldProblem):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
            schema.pop("$defs", None)
            schemas[model.__name__] = schema
        for operations in document.get("paths", {}).values():
            for operation in operations.values():
                _require_headers(operation)
        return document

    app.openapi = described  # type: ignore[method-assign]  # how FastAPI documents that it is extended


def _require_headers(operation: dict[str, Any]) -> None:
    """Says that a header is required which the code takes as optional, to answer with a code of its own without it."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in _REQUIRED_HEADERS:
            parameter["required"] = True
            parameter["schema"] = {"type": "string"}
