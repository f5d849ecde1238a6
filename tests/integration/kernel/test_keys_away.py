"""A service goes on while quota is away: keys for verification lie in its own schema."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from millpond_contracts.bodies.tenants import Role
from millpond_kernel.app import ServiceApp, build_app
from millpond_kernel.auth import Caller
from millpond_kernel.serve import Joined
from millpond_kernel.settings import ServiceSettings
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Services, run_services

pytestmark = pytest.mark.integration


class BillingSettings(ServiceSettings):
    """Settings of a service with one route, in billing's schema."""

    service: ClassVar[str] = "billing"


class Line(httpx.AsyncBaseTransport):
    """The way to the other services, which can be cut."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner = inner
        self.cut = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.cut:
            raise httpx.ConnectError("the line is cut", request=request)
        return await self.inner.handle_async_request(request)


def probe_app(migrated: MigratedDatabase, services: Services, line: Line) -> FastAPI:
    router = APIRouter(prefix="/v1/statements")

    @router.get("")
    async def who(caller: Caller) -> Role:
        return caller.role

    settings = BillingSettings(
        database_url=migrated.url("billing"),
        service_key=services.settings["quota"].service_key,
        redis_url=migrated.redis_url,
        redis_prefix=migrated.redis_prefix,
        quota_url="http://millpond",
        registry_url="http://millpond",
        billing_url="http://millpond",
    )
    return build_app(ServiceApp(settings=settings, routers=[router], standstill="", transport=line))


@asynccontextmanager
async def probe(migrated: MigratedDatabase, services: Services, line: Line) -> AsyncIterator[httpx.AsyncClient]:
    joined = Joined({"billing": probe_app(migrated, services, line)})
    async with (
        joined.running(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=joined), base_url="http://probe") as client,
    ):
        yield client


async def status(client: httpx.AsyncClient, credentials: str) -> httpx.Response:
    return await client.get("/v1/statements", headers={"Authorization": f"Bearer {credentials}"})


async def test_restart_when_quota_is_away_then_known_tokens_pass_and_unseen_keys_get_503(
    migrated: MigratedDatabase,
) -> None:
    async with run_services(migrated, ["quota"], workers=False) as services:
        line = Line(services.transport)
        made = await services.http.post("/v1/tokens", json={"api_key": services.operator_key})
        token = made.json()["token"]
        line.cut = True
        async with probe(migrated, services, line) as client:
            unready = await client.get("/readyz/billing")
            assert unready.status_code == 503
            assert not unready.json()["parts"]["keys"]["ok"]
            # Nobody can tell yet whether the token is good: that is not the caller's fault.
            early = await status(client, token)
            assert (early.status_code, early.json()["code"]) == (503, "kernel.dependency.away")
        line.cut = False
        async with probe(migrated, services, line) as client:
            assert (await status(client, token)).json() == "operator"
            assert (await status(client, services.operator_key)).json() == "operator"
            line.cut = True
            assert (await status(client, services.operator_key)).status_code == 200
        async with probe(migrated, services, line) as client:
            assert (await client.get("/readyz/billing")).status_code == 200
            assert (await status(client, token)).json() == "operator"
            unseen = await status(client, services.operator_key)
            assert (unseen.status_code, unseen.headers["retry-after"]) == (503, "2")
            forged = await status(client, "eyJraWQiOiAicXVvdGEtMDAifQ.e30.c2ln")
            assert forged.status_code == 503
            assert (await status(client, "eyJraWQiOiAiZXZpbC0wMCJ9.e30.c2ln")).status_code == 401
            line.cut = False
            assert (await status(client, "mp_x")).status_code == 401
            assert (await status(client, services.operator_key + "0")).status_code == 401
            assert (await status(client, services.operator_key)).json() == "operator"
