"""The asynchronous client against the real services: the same calls, awaited."""

import asyncio

import pytest

from millpond import AsyncClient
from millpond.client.errors import Conflict, NotFound, Unauthenticated
from millpond_contracts.bodies.jobs import JobState, JobView
from millpond_contracts.bodies.tenants import ProjectSpec, Role
from tests.integration.client.served import Served
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def submit(client: AsyncClient, name: str, **labels: str) -> JobView:
    async def submitted() -> JobView | None:
        try:
            return await client.submit(["true"], cpu_milli=1000, memory_mib=512, name=name, labels=labels)
        except NotFound:  # The scheduler knows a virtual pool from quota's events, which take a moment.
            return None

    return await eventually(submitted)


async def test_tenants_day_when_awaited_then_as_with_the_other_client(served: Served) -> None:
    async with AsyncClient(served.url, await served.make_tenant()) as client:
        me = await client.me()
        assert (me.role, me.tenant_name, me.api_key_name) == (Role.TENANT_ADMIN, "acme", "admin")
        project = await client.projects.create(ProjectSpec(name="vision"))
        assert [each.name async for each in client.projects.list()] == ["vision"]
        assert await client.projects.get("vision") == project
        first, second = await submit(client, "train", team="a"), await submit(client, "train", team="b")
        assert [each.job_id async for each in client.jobs.list(label="team=a")] == [first.job_id]
        assert (await client.jobs.get("train")).job_id == second.job_id
        assert [each.group async for each in client.jobs.tasks(first)] == ["main"]
        assert (await client.explain(second)).state is JobState.PENDING
        assert await client.logs(first) == ""
        assert (await client.cancel(first)).state is JobState.CANCELLED
        assert (await client.wait(first, timeout_seconds=10)).state is JobState.CANCELLED
        with pytest.raises(Conflict):
            await client.cancel(first)
        with pytest.raises(NotFound):
            await client.jobs.get("nobody")
        assert {line.resource async for line in client.usage.list()} == {"cpu", "memory"}


async def test_lists_when_longer_than_a_page_then_read_to_their_end_and_side_by_side(served: Served) -> None:
    async with AsyncClient(served.url, await served.make_tenant()) as client:
        await asyncio.gather(*(client.projects.create(ProjectSpec(name=f"project-{n}")) for n in range(205)))
        lists = await asyncio.gather(*(_names(client) for _ in range(3)))
        assert [sorted(names) for names in lists] == [sorted(f"project-{n}" for n in range(205))] * 3


async def _names(client: AsyncClient) -> list[str]:
    return [project.name async for project in client.projects.list()]


async def test_events_when_watched_then_they_come_and_the_watch_can_be_left(served: Served) -> None:
    async with AsyncClient(served.url, await served.make_tenant()) as client:
        job = await submit(client, "seen")
        seen = None
        async for event in client.events.watch("scheduler", after=0):
            if event.type == "scheduler.job_submitted.v1":
                seen = event.subject
                break
        assert seen == str(job.job_id)
        rest = [event async for event in client.events.watch("scheduler", after=event.seq, follow=False)]
        assert all(each.seq > event.seq for each in rest)


async def test_credentials_when_wrong_then_unauthenticated(served: Served) -> None:
    async with AsyncClient(served.url, "mp_not_a_key_at_all_but_long") as nobody:
        with pytest.raises(Unauthenticated):
            await nobody.me()
