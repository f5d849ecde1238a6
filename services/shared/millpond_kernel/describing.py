"""What is said about every service alike: its OpenAPI document, and the page of error codes that problems refer to."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from millpond_contracts.bodies.shapes import FieldProblem, Problem
from millpond_contracts.errors import ErrorCode
from millpond_kernel.auth import Allowed

_PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}

# Given to FastAPI, these also replace its own description of validation errors, which are not what is sent.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request was refused; nothing was changed", "content": _PROBLEM},
    "5XX": {"description": "The request could not be served now; Retry-After tells when to try again"}
    | {"content": _PROBLEM},
}

_REQUIRED_HEADERS = frozenset({"Idempotency-Key", "If-Match"})


def name_operation(route: APIRoute) -> str:
    """The operation's id: the function's name, which is what a generated client calls it."""
    return route.name


class DescribedApp(FastAPI):
    """An application whose OpenAPI document also has the schemas of problems, required headers, and who may call
    what of `public`."""

    public: Sequence[APIRouter] = ()

    def openapi(self) -> dict[str, Any]:
        """The whole document; FastAPI asks for it under this name."""
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in (Problem, FieldProblem):
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
            schema.pop("$defs", None)
            schemas[model.__name__] = schema
        roles = _roles(self.public)
        for path, operations in document.get("paths", {}).items():
            for method, operation in operations.items():
                _require_headers(operation)
                if (method, path) in roles:
                    operation["x-millpond-roles"] = roles[method, path]
        return document


def _roles(routers: Sequence[APIRouter]) -> dict[tuple[str, str], list[str]]:
    """(method, path) -> the roles that may call it; routes that are open, or to every role alike, are missing."""
    found: dict[tuple[str, str], list[str]] = {}
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, APIRoute):
            roles = _roles_of(route.dependant)
            found |= {(method.lower(), route.path): roles for method in route.methods or () if roles}
    return found


def _roles_of(dependant: Dependant) -> list[str]:
    own = dependant.call.roles if isinstance(dependant.call, Allowed) else ()
    return sorted({*own, *(role for inner in dependant.dependencies for role in _roles_of(inner))})


def _require_headers(operation: dict[str, Any]) -> None:
    """Says that a header is required which the code takes as optional, to answer with a code of its own without it."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in _REQUIRED_HEADERS:
            parameter["required"] = True
            parameter["schema"] = {"type": "string"}


def errors_router(service: str) -> APIRouter:
    """`/docs/<service>/errors`: every code with its status and meaning; the `type` of a problem leads to its row."""
    router = APIRouter(include_in_schema=False)
    page = _errors_page()

    @router.get(f"/docs/{service}/errors")
    async def read_errors() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    return router


def _errors_page() -> str:
    rows = "".join(
        f'<tr id="{code.value}"><td><code>{code.value}</code><td>{code.status}<td>{escape(code.meaning)}\n'
        for code in ErrorCode
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Millpond: error codes</title>'
        "<style>body{font-family:sans-serif;margin:2em}td,th{text-align:left;padding:.2em 1em .2em 0}"
        "tr:target{background:#ffd}</style><h1>Error codes</h1><p>Every error is a problem document (RFC 9457,"
        " <code>application/problem+json</code>) with one of these in <code>code</code>. They never change.</p>"
        f"<table><thead><tr><th>Code<th>Status<th>Meaning</thead>\n{rows}</table></html>\n"
    )
