"""A tenant that asks too often is told when to come again; nobody else notices."""

from typing import Any

import httpx
import pytest

from tests.fakes.control_plane import serving
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration

BURST = 4


async def member_of(services: Services, name: str) -> Caller:
    operator = services.as_key()
    tenant = (await operator("POST", "/v1/tenants", {"name": name}, expect=201)).json()["tenant_id"]
    key = {"name": "key", "role": "tenant_admin", "tenant_id": tenant}
    return services.as_key((await operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"])


async def names_of_projects(services: Services) -> list[Any]:
    return [project["name"] for project in (await services.as_key()("GET", "/v1/projects")).json()["items"]]


def counted(metrics: str) -> float:
    name = 'millpond_tenant_requests_limited_total{service="quota"} '
    return sum(float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name))


async def test_tenant_when_it_asks_too_often_then_429_with_the_seconds_to_wait_and_nothing_done(
    migrated: MigratedDatabase, capfd: pytest.CaptureFixture[str]
) -> None:
    slow = {"tenant_requests_per_second": 0.1, "tenant_requests_burst": BURST}
    async with run_services(migrated, ["quota"], workers=False, **slow) as services:
        busy, calm, operator = await member_of(services, "busy"), await member_of(services, "calm"), services.as_key()
        before = counted((await services.http.get("/metrics/quota")).text)
        answers = [await busy("POST", "/v1/projects", {"name": f"project-{n}"}) for n in range(BURST + 2)]
        assert [answer.status_code for answer in answers] == [201] * BURST + [429] * 2
        refused = answers[-1]
        assert refused.headers["content-type"] == "application/problem+json"
        assert (refused.json()["code"], refused.headers["retry-after"]) == ("kernel.rate.limited", "10")
        assert await names_of_projects(services) == [f"project-{n}" for n in range(BURST)]

        # Another key of the same tenant has the same bucket; another tenant has its own, and operators have none.
        again = await operator("POST", "/v1/tokens", {"api_key": busy.credentials}, expect=200)
        token = services.as_key(again.json()["token"])
        assert (await token("GET", "/v1/me")).status_code == 429
        assert [(await calm("GET", "/v1/me")).status_code for _ in range(BURST)] == [200] * BURST
        assert {(await operator("GET", "/v1/me")).status_code for _ in range(3 * BURST)} == {200}

        told = (await services.http.get("/metrics/quota")).text
        assert counted(told) - before == 3
        tenant = (await operator("GET", "/v1/tenants?name=busy")).json()["items"][0]["tenant_id"]
        assert tenant not in told
        assert capfd.readouterr().out.count("tenant_held_back") == 1


async def test_services_when_they_ask_often_then_not_held_back(migrated: MigratedDatabase) -> None:
    slow = {"tenant_requests_per_second": 0.1, "tenant_requests_burst": 1}
    async with run_services(migrated, ["quota"], workers=False, **slow) as services:
        service = services.as_key(services.settings["quota"].service_key.get_secret_value())
        answers = [await service("GET", "/internal/v1/events/quota") for _ in range(5)]
        assert {answer.status_code for answer in answers} == {200}


async def test_streams_when_a_tenant_has_too_many_open_then_429_until_one_ends(migrated: MigratedDatabase) -> None:
    async with run_services(migrated, ["quota"], workers=False, tenant_streams=1) as services:
        busy, calm, operator = await member_of(services, "busy"), await member_of(services, "calm"), services.as_key()
        assert isinstance(services.transport, httpx.ASGITransport)
        async with serving(services.transport.app) as url, httpx.AsyncClient(base_url=url) as http:

            async def status(caller: Caller) -> int:
                """Of a watch that the caller opens and leaves at once."""
                asked = {"Authorization": f"Bearer {caller.credentials}"}
                async with http.stream("GET", "/v1/events/quota", headers=asked) as answer:
                    return answer.status_code

            headers = {"Authorization": f"Bearer {busy.credentials}"}
            async with http.stream("GET", "/v1/events/quota", headers=headers) as first:
                lines = first.aiter_lines()  # kept: the stream would end with it
                await anext(lines)
                refused = await http.get("/v1/events/quota", headers=headers)
                assert (refused.status_code, refused.json()["code"]) == (429, "kernel.rate.limited")
                assert int(refused.headers["retry-after"]) > 0
                assert [await status(calm), await status(operator)] == [200, 200]
                assert (await busy("GET", "/v1/me")).status_code == 200

            async def may_again() -> bool:
                return await status(busy) == 200

            await eventually(may_again)
