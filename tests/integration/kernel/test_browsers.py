"""What a browser is told: which pages may call the API, and where an error is explained."""

import pytest
from pydantic import ValidationError

from millpond_contracts.errors import ErrorCode
from millpond_quota.settings import Settings
from tests.integration.databases import MigratedDatabase
from tests.integration.services import run_services

pytestmark = pytest.mark.integration

PORTAL = "https://portal.example.com"
ASKING = {
    "Origin": PORTAL,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,idempotency-key,content-type",
}


async def test_origins_when_none_is_set_then_no_page_may_call(migrated: MigratedDatabase) -> None:
    async with run_services(migrated, ["quota"], workers=False) as services:
        asked = await services.http.options("/v1/tenants", headers=ASKING)
        read = await services.http.get("/v1/me", headers={"Origin": PORTAL})
        assert asked.status_code == 405
        for answer in (asked, read):
            assert [name for name in answer.headers if name.startswith("access-control")] == []


async def test_origins_when_one_is_set_then_its_pages_alone_may_call(migrated: MigratedDatabase) -> None:
    async with run_services(migrated, ["quota"], workers=False, cors_origins=(PORTAL,)) as services:
        asked = await services.http.options("/v1/tenants", headers=ASKING)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, PORTAL)
        assert "access-control-allow-credentials" not in asked.headers
        for stranger in ("https://portal.example.com.evil.test", "http://portal.example.com", "null"):
            refused = await services.http.options("/v1/tenants", headers={**ASKING, "Origin": stranger})
            assert "access-control-allow-origin" not in refused.headers
        # A page must be able to read what it was refused, and when to come again.
        problem = await services.http.get("/v1/me", headers={"Origin": PORTAL})
        assert (problem.status_code, problem.headers["access-control-allow-origin"]) == (401, PORTAL)
        exposed = problem.headers["access-control-expose-headers"].lower()
        assert {"etag", "retry-after", "x-request-id"} <= set(exposed.replace(" ", "").split(","))
        too_large = await services.http.post("/v1/tenants", content=b"x" * 2_000_000, headers={"Origin": PORTAL})
        assert (too_large.status_code, too_large.headers["access-control-allow-origin"]) == (413, PORTAL)


@pytest.mark.parametrize(
    "origins",
    ["*", "https://*.example.com", "portal.example.com", "https://portal.example.com/", "https://a.test/x", "null"],
)
def test_origins_when_not_exact_then_the_service_does_not_start(origins: str) -> None:
    with pytest.raises(ValidationError, match="origin"):
        Settings(database_url="postgresql://nobody@nowhere/none", cors_origins=origins)


def test_origins_when_read_from_the_environment_then_commas_part_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CORS_ORIGINS", f"{PORTAL}, http://localhost:5173")
    settings = Settings(database_url="postgresql://nobody@nowhere/none")
    assert settings.cors_origins == (PORTAL, "http://localhost:5173")


async def test_problem_when_its_type_is_followed_then_the_page_has_that_code(migrated: MigratedDatabase) -> None:
    async with run_services(migrated, ["quota"], workers=False) as services:
        problem = (await services.http.get("/v1/me")).json()
        page, _, anchor = problem["type"].partition("#")
        assert anchor == problem["code"] == ErrorCode.CREDENTIALS_MISSING
        explained = await services.http.get(page)
        assert (explained.status_code, explained.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert [code for code in ErrorCode if f'id="{code.value}"' not in explained.text] == []
