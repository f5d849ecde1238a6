"""The command line against the real services: a newcomer's way, as operator and as tenant."""

import json
from typing import Any, cast

import pytest

from tests.integration.client.served import Served
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_newcomer_when_following_the_readme_then_a_job_waits_with_a_reason(served: Served) -> None:
    assert "metal" in await served.run("pool", "create", "metal")
    assert "made tenant acme" in await served.run("tenant", "create", "acme")
    share = ("limit", "create", "main", "--tenant", "acme", "--pool", "metal", "--cpu", "0", "--memory", "0MiB")
    # What is guaranteed must exist; without a machine there is only what may be borrowed.
    await _until_done(served, *share, "--borrow", "cpu=2", "--borrow", "memory=4GiB")
    assert "0 cores (at most 2), 0 MiB (at most 4 GiB)" in await served.run("limit", "list")
    secret = json.loads(await served.run("key", "create", "laptop", "--tenant", "acme", "-o", "json"))["secret"]
    assert "member" in await served.run("whoami", key=secret)
    submit = ("submit", "--name", "hello", "-o", "id", "--", "echo", "hi")
    job = (await _until_done(served, *submit, key=secret)).strip()
    listed = await served.run("ps", key=secret)
    assert ("hello" in listed, "pending" in listed) == (True, True)

    async def decided() -> str:
        said = await served.run("explain", "hello", key=secret)
        return "" if "undecided" in said else said

    explained = await eventually(decided)
    assert ("pending" in explained, "next in its queue" in explained) == (True, True)
    assert "no node" in explained, explained
    assert job in await served.run("queue", key=secret)
    assert "being ended" in await served.run("cancel", "hello", key=secret)
    await served.run("wait", "hello", "--timeout", "10s", key=secret, code=1)
    assert json.loads(await served.run("job", "hello", "-o", "json", key=secret))["state"] == "cancelled"
    assert "job.submit" in await served.run("audit", "--service", "scheduler")
    assert "job submitted" in await served.run("events", "--service", "scheduler", "--after", "0", "--no-follow")


async def _until_done(served: Served, *arguments: str, key: str | None = None) -> str:
    """Repeats a command while the service has not yet heard of what it names from another service's events."""

    async def done() -> str:
        code, said = await served.try_to_run(*arguments, key=key)
        assert code == 0 or "There is no" in said, said
        return said if code == 0 else ""

    return str(await eventually(done))


async def test_operator_when_asking_about_everything_then_every_command_answers(served: Served) -> None:
    for command in (
        ("nodes",),
        ("pools",),
        ("capacity",),
        ("devices",),
        ("flavors", "--vendor", "nvidia"),
        ("tenant", "list"),
        ("project", "list"),
        ("key", "list"),
        ("limit", "list"),
        ("usage",),
        ("bill",),
        ("price", "list"),
        ("price", "show"),
        ("join-token", "list"),
        ("ps",),
        ("whoami",),
    ):
        assert await served.run(*command)


async def test_status_when_all_services_run_then_all_are_well(served: Served) -> None:
    async def well() -> bool:
        code, said = await served.try_to_run("status", "-o", "id")
        return (code, said.split()[1::2]) == (0, ["ok"] * 5)

    assert await eventually(well)


async def _prices(served: Served, note: str) -> dict[str, Any]:
    """The prices in force, once those with this note are: versions begin at the next whole second."""

    async def published() -> dict[str, Any] | None:
        code, said = await served.try_to_run("price", "show", "-o", "json")
        found: dict[str, Any] = json.loads(said) if code == 0 else {"note": ""}
        return found if found["note"].startswith(note) else None

    return cast(dict[str, Any], await eventually(published))


async def test_prices_when_one_is_set_then_the_others_stay(served: Served) -> None:

    before = await _prices(served, "example prices")
    assert "prices in force" in await served.run("price", "set", "cpu=0.5", "h100-sxm=20", "--note", "spring")
    after = await _prices(served, "spring")
    named = {"cpu/*/on_demand": "0.5", "device/h100-sxm/on_demand": "20"}
    wanted = {line["sku"]: line["per_hour"] for line in before["lines"]} | named
    assert {line["sku"]: line["per_hour"] for line in after["lines"]} == wanted
    assert after["minimum_seconds"] == before["minimum_seconds"]


async def test_wrong_use_when_refused_by_a_service_then_words_and_one(served: Served) -> None:
    assert "no tenant 'nobody'" in await served.run("tenant", "show", "nobody", code=1)
    await served.run("tenant", "create", "acme")
    assert "kernel.name.taken" in await served.run("tenant", "create", "acme", code=1)
    assert "kernel.credentials" in await served.run("ps", key="mp_wrong_but_long_enough", code=1)
