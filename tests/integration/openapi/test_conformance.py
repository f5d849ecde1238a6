"""Every operation of every service, asked by schemathesis with what its document allows and with what it forbids.

No answer is a server error, and each is as the document says: its status, its type, its headers and its body. That what
is forbidden is refused and changes nothing, the hostile tests hold for every field.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as conformance

from millpond_contracts.bodies.tenants import Role
from tests.architecture.tree import ROOT
from tests.integration.hostile.routes import PUBLISHERS
from tests.integration.hostile.world import World

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

EXAMPLES = 8
CHECKS = [
    not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]
# The schema is that of the whole text; schemathesis holds each event against it.
CHECKS_OF_STREAMS = CHECKS[:-1]
# A stream that follows never ends, and a poll that waits costs time; both say the same when they do not.
SHORT = {"follow": "false"}


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation: as it is described, and with bounds that a generator reaches quickly, which its cases come from."""

    described: Any
    bounded: Any


# The most that is generated of what the document would allow by the thousand.
_FEW = {"maxItems": ("minItems", 2), "maxProperties": ("minProperties", 2), "maxLength": ("minLength", 64)}


def bounded(schema: Any) -> Any:
    """The document with smaller upper bounds: everything it allows the original allows too."""
    if isinstance(schema, list):
        return [bounded(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: bounded(inner) for name, inner in schema.items()}
    if found.get("type") == "array":
        found.setdefault("maxItems", 1 << 30)
    for name, (least, few) in _FEW.items():
        if isinstance(found.get(name), int):
            found[name] = max(min(found[name], few), found.get(least, 0))
    return found


def _operations() -> Iterator[Any]:
    """Every operation, those that take away what others need last."""
    found: list[Asked] = []
    for service in PUBLISHERS:
        document = json.loads((ROOT / "openapi" / f"{service}.json").read_text(encoding="utf-8"))
        described, quick = schemathesis.openapi.from_dict(document), schemathesis.openapi.from_dict(bounded(document))
        for result in described.get_all_operations():
            assert isinstance(result, Ok), result.err()
            operation: Any = result.ok()
            found.append(Asked(operation, quick[operation.path][operation.method.upper()]))
    order = {"get": 0, "post": 1, "put": 2, "patch": 2, "delete": 4}
    ends = ("/revoke", "/role", "/cancel", "/drain", "/move")
    found.sort(key=lambda one: 3 if one.described.path.endswith(ends) else order[one.described.method])
    for one in found:
        yield pytest.param(one, id=one.described.label)


OPERATIONS = list(_operations())


@pytest.mark.parametrize("operation", OPERATIONS)
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(data=st.data())
async def test_operation_when_asked_in_every_way_then_it_answers_as_described(
    world: World, operation: Asked, data: st.DataObject
) -> None:
    mode = data.draw(st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE]), label="mode")
    case: Case[Any] = data.draw(operation.bounded.as_strategy(generation_mode=mode), label="case")
    if data.draw(st.booleans(), label="of acme") and case.path_parameters:
        case.path_parameters = {name: world.ids.get(name, value) for name, value in case.path_parameters.items()}
    answer = await send(world, case)
    assert answer.status_code < 500, answer.text
    case.operation = operation.described
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    case.validate_response(answer, checks=CHECKS_OF_STREAMS if is_stream else CHECKS)


async def send(world: World, case: Case[Any]) -> httpx.Response:
    """The answer to a case, asked for with credentials that may."""
    if case.query and "follow" in case.query:
        case.query = {**case.query, **SHORT}
    elif any(parameter.name == "follow" for parameter in case.operation.query):
        case.query = {**(case.query or {}), **SHORT}
    if isinstance(case.body, dict) and "wait_seconds" in case.body:
        case.body = {**case.body, "wait_seconds": 0}
    prepared = requests.Request(**case.as_transport_kwargs(base_url="http://millpond")).prepare()
    headers = {**prepared.headers, "Authorization": f"Bearer {world.keys[role_for(case)]}"}
    # Latin-1 is what a header may hold; the client would refuse to send more than ASCII as text.
    sent = [(_bytes(name, "latin-1"), _bytes(value, "latin-1")) for name, value in headers.items()]
    body: Any = prepared.body
    content = _bytes(body, "utf-8") if isinstance(body, str) else body
    return await world.services.http.request(case.method, str(prepared.url), content=content, headers=sent)


def _bytes(text: str | bytes, encoding: str) -> bytes:
    return text if isinstance(text, bytes) else text.encode(encoding, "replace")


def role_for(case: Case[Any]) -> Role:
    """A role that may call the operation; a tenant's own where it may."""
    allowed = case.operation.definition.raw.get("x-millpond-roles") or [Role.OPERATOR.value]
    order = (Role.TENANT_ADMIN, Role.OPERATOR, Role.NODE, Role.SERVICE)
    return next(role for role in order if role.value in allowed)
