"""The gateway passes a request on as it was written, to the service of its path, and nothing internal."""

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millpond_kernel.gateway import Gateway

pytestmark = pytest.mark.unit


async def passed_on(target: str) -> tuple[int, list[str]]:
    """The status that a caller gets, and what the registry was asked for."""
    asked: list[str] = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode()
        asked.append(scope["raw_path"].decode() + (f"?{query}" if query else ""))
        await Response()(scope, receive, send)

    gateway = Gateway({"registry": "http://registry"}, transport=httpx.ASGITransport(app=answer))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=gateway), base_url="http://gateway") as client:
        return (await client.get(target)).status_code, asked


@pytest.mark.parametrize("target", ["/v1/pools?limit=2&name=a%26b", "/v1/flavors/a%3Fb", "/v1/flavors/a%2Fb?x=%2520"])
async def test_request_when_its_path_is_a_services_then_passed_on_as_written(target: str) -> None:
    assert await passed_on(target) == (200, [target])


@pytest.mark.parametrize(
    "target", ["/internal/v1/jwks/registry", "/v1/pools/%2E%2E/%2e%2e/internal/v1/jwks/registry", "/v1/jobs", "/"]
)
async def test_request_when_it_is_internal_or_nobodys_then_404(target: str) -> None:
    assert await passed_on(target) == (404, [])
