"""The Python client against the real services: every noun, errors, repetition, events."""

from collections.abc import Iterator

import httpx
import pytest

from millpond.client.calls import get_page
from millpond.client.client import Client
from millpond.client.errors import Conflict, Forbidden, InvalidRequest, NotFound, Stale, Unauthenticated
from millpond.client.retries import RetryPolicy
from millpond.client.sending import Sender
from millpond_contracts.bodies.bills import ExportState, PriceLine, PriceVersionSpec
from millpond_contracts.bodies.jobs import JobState, JobView
from millpond_contracts.bodies.nodes import FlavorSelector, FlavorSpec, JoinTokenSpec
from millpond_contracts.bodies.pools import PoolSpec
from millpond_contracts.bodies.tenants import (
    ApiKeySpec,
    Limit,
    Limits,
    ProjectSpec,
    Role,
    TenantSpec,
    TenantView,
    VirtualPoolChange,
)
from millpond_contracts.events.envelope import Envelope
from millpond_contracts.quantities import ExactDecimal
from tests.integration.client.served import Served
from tests.waiting import eventually

pytestmark = pytest.mark.integration

TRUE = ["true"]


async def test_tenants_and_keys_when_made_then_found_by_name_and_id(served: Served) -> None:
    def story() -> None:
        client = served.client
        made = client.tenants.create(TenantSpec(name="acme", timezone="Asia/Shanghai"))
        assert client.tenants.get("acme") == client.tenants.get(made.tenant_id) == made
        with pytest.raises(Conflict) as taken:
            client.tenants.create(TenantSpec(name="acme"))
        assert taken.value.code == "kernel.name.taken"
        changed = client.tenants.replace(made, TenantSpec(name="acme-2"))
        with pytest.raises(Stale):
            client.tenants.replace(made, TenantSpec(name="acme-3"))
        project = client.projects.create(ProjectSpec(name="research", tenant_id=made.tenant_id))
        assert client.projects.get("research", tenant_id=made.tenant_id) == project
        key = client.api_keys.create(ApiKeySpec(name="ci", role=Role.VIEWER, tenant_id=made.tenant_id))
        assert client.api_keys.get("ci").secret is None
        with Client(served.url, key.secret or "") as viewer:
            me = viewer.me()
            assert (me.role, me.tenant_name) == (Role.VIEWER, "acme-2")
            with pytest.raises(Forbidden):
                viewer.tenants.create(TenantSpec(name="sneaky"))
            assert list(viewer.tenants.list()) == [changed]
        assert client.api_keys.revoke(key.api_key_id).revoked_at is not None
        client.projects.delete(project)
        with pytest.raises(NotFound):
            client.projects.get(project.project_id)

    await served.call(story)


async def test_credentials_when_wrong_then_unauthenticated(served: Served) -> None:
    def ask() -> None:
        with Client(served.url, "mp_not_a_key_at_all_but_long") as nobody:
            nobody.me()

    with pytest.raises(Unauthenticated):
        await served.call(ask)


async def test_lists_when_longer_than_a_page_then_all_are_read(served: Served) -> None:
    def story() -> list[str]:
        for number in range(5):
            served.client.tenants.create(TenantSpec(name=f"tenant-{number}"))
        with httpx.Client(
            base_url=served.url, headers={"Authorization": f"Bearer {served.operator_key}"}, timeout=30
        ) as http:
            found = Sender(http, RetryPolicy()).pages(get_page("/v1/tenants", TenantView, limit=2))
            return [each.name for each in found]

    assert await served.call(story) == [f"tenant-{number}" for number in range(5)]


async def test_pools_flavors_and_tokens_when_made_then_read_back(served: Served) -> None:
    def story() -> None:
        client = served.client
        pool = client.pools.create(PoolSpec(name="metal", region="north"))
        assert client.pools.get("metal") == pool
        assert client.pools.capacity(pool.pool_id).nodes.get("ready", 0) == 0
        flavor = client.flavors.create(FlavorSpec(name="mine", selector=FlavorSelector(vendor="acme")))
        assert client.flavors.get("mine") == flavor
        assert any(each.builtin for each in client.flavors.list())
        assert {each.vendor for each in client.flavors.catalogue(vendor="nvidia")} == {"nvidia"}
        token = client.join_tokens.create(JoinTokenSpec(pool_id=pool.pool_id, max_uses=1))
        assert token.token
        (listed,) = client.join_tokens.list()
        assert listed.token is None
        client.join_tokens.revoke(token.join_token_id)
        assert list(client.nodes.list()) == []
        assert list(client.devices.list()) == []

    await served.call(story)


async def test_virtual_pool_when_changed_then_the_new_limits_are_read(served: Served) -> None:
    await served.make_tenant()

    def story() -> None:
        found = served.client.find_virtual_pool("main", tenant="acme")
        limits = Limits(cpu=Limit(guaranteed=1000), memory=Limit(guaranteed=1024))
        changed = served.client.virtual_pools.change(found, VirtualPoolChange(limits=limits))
        assert served.client.virtual_pools.get("main").limits == changed.limits == limits
        with pytest.raises(Stale):
            served.client.virtual_pools.change(found, VirtualPoolChange(limits=limits))
        assert list(served.client.virtual_pools.alerts(found.virtual_pool_id)) == []

    await served.call(story)


async def submit(served: Served, client: Client, name: str) -> JobView:
    """Submits once the scheduler knows the virtual pool, which it learns from events."""
    submitted: list[JobView] = []

    def attempt() -> bool:
        try:
            submitted.append(client.submit(TRUE, cpu_milli=1000, memory_mib=256, name=name))
        except NotFound:
            return False
        return True

    async def accepted() -> bool:
        return await served.call(attempt)

    await eventually(accepted)
    return submitted[0]


async def test_job_when_no_machine_is_there_then_explained_queued_and_cancelled(served: Served) -> None:
    with Client(served.url, await served.make_tenant()) as tenant:
        first, second = await submit(served, tenant, "train"), await submit(served, tenant, "train")

        def explained() -> bool:
            return tenant.explain(second).position == 2

        async def has_place() -> bool:
            return await served.call(explained)

        await eventually(has_place)

        def story() -> None:
            assert tenant.jobs.id_of("train") == second.job_id
            assert [each.job_id for each in tenant.jobs.list()] == [first.job_id, second.job_id]
            newest = served.client.jobs.list(tenant_id=first.tenant_id, name="train", newest_first=True)
            assert [each.job_id for each in newest] == [second.job_id, first.job_id]
            assert list(served.client.jobs.list(name="other")) == []
            explanation = tenant.explain("train")
            assert (explanation.state, explanation.nodes, sum(explanation.counts.values())) == (JobState.PENDING, 0, 0)
            queue = list(tenant.queues.list(tenant.find_virtual_pool().virtual_pool_id))
            assert [each.job_id for each in queue] == [first.job_id, second.job_id]
            (task,) = tenant.jobs.tasks(first)
            assert tenant.jobs.get(first).tasks == [task]
            assert tenant.logs(first) == ""
            assert tenant.cancel(first).state is JobState.CANCELLED
            ended = tenant.wait(first, timeout_seconds=10)
            assert (ended.state, ended.spec.groups[0].run.command) == (JobState.CANCELLED, ("true",))
            with pytest.raises(Conflict):
                tenant.cancel(first)
            assert list(tenant.allocations.list(job_id=first.job_id)) == []
            assert {line.used for line in tenant.usage.list()} <= {0}

        await served.call(story)


async def test_job_when_another_tenant_asks_then_there_is_none(served: Served) -> None:
    mine, others = await served.make_tenant("mine"), await served.make_tenant("others")
    with Client(served.url, mine) as owner, Client(served.url, others) as stranger:
        job = await submit(served, owner, "secret")

        def story() -> None:
            assert list(stranger.jobs.list()) == []
            for ask in (stranger.jobs.get, stranger.explain, stranger.cancel, stranger.logs):
                with pytest.raises(NotFound):
                    ask(job)
            assert owner.jobs.get(job).state is JobState.PENDING

        await served.call(story)


async def test_money_when_nothing_ran_then_a_statement_of_nothing(served: Served) -> None:
    with Client(served.url, await served.make_tenant()) as tenant:

        def known() -> bool:
            try:
                return tenant.statements.current().lines == 0
            except NotFound:
                return False

        async def is_known() -> bool:
            return await served.call(known)

        await eventually(is_known)

        def story() -> None:
            assert str(tenant.statements.current().total.amount) == "0"
            assert list(tenant.charges.list()) == []
            assert list(tenant.statements.list()) == []
            with pytest.raises(InvalidRequest):
                served.client.statements.current()
            skus = ("cpu/*/on_demand", "device/*/on_demand", "memory/*/on_demand")
            lines = tuple(PriceLine(sku=sku, per_hour=ExactDecimal("0.25")) for sku in skus)
            version = served.client.price_books.publish(PriceVersionSpec(lines=lines, note="spring"))
            assert set(tenant.price_books.get(version.price_version_id).lines) == set(lines)
            assert version.price_version_id in {each.price_version_id for each in tenant.price_books.list()}
            assert {export.state for export in tenant.exports.list()} <= {ExportState.QUEUED}
            assert served.client.reconciliations.get().conservation == []

        await served.call(story)


async def test_events_when_watched_then_resumed_where_they_were_left(served: Served) -> None:
    def make(*names: str) -> None:
        for name in names:
            served.client.tenants.create(TenantSpec(name=name))

    def watch(after: int, wanted: int) -> list[Envelope]:
        stream: Iterator[Envelope] = served.client.events.watch("quota", after=after)
        return [next(stream) for _ in range(wanted)]

    await served.call(lambda: make("a", "b"))
    first = await served.call(lambda: watch(0, 1))
    rest = await served.call(lambda: watch(first[0].seq, 1))
    assert [each.seq for each in first + rest] == [1, 2]
    assert {each.type for each in first + rest} == {"quota.tenant_changed.v1"}


async def test_health_when_workers_run_then_every_service_is_well(served: Served) -> None:
    def well(service: str) -> bool:
        return served.client.health.get(service).status == "ok"

    for service in ("registry", "quota", "scheduler", "billing", "autoscaler"):

        async def is_well(service: str = service) -> bool:
            return await served.call(lambda: well(service))

        assert await eventually(is_well)
