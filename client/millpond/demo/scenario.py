"""What the demo does through the public API: two tenants with limits, their jobs, and one that cannot fit."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from millpond.client.client import Client
from millpond.client.errors import MillpondError
from millpond.client.jobs import FINAL
from millpond.demo.interpreter import TaskPython
from millpond_contracts.bodies.bills import PriceLine, PriceVersionSpec, PriceVersionView
from millpond_contracts.bodies.groups import GroupSpec, Resources, RunSpec
from millpond_contracts.bodies.jobs import JobSpec, JobState, JobView
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.pools import PoolSpec
from millpond_contracts.bodies.tenants import (
    ApiKeySpec,
    Limit,
    Limits,
    Role,
    TenantSpec,
    VirtualPoolSpec,
    VirtualPoolView,
)
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.quantities import ExactDecimal

TRAINING_SECONDS = 20
SHORT_JOBS = 6
_SHORT_CPU_MILLI, _SHORT_MEMORY_MIB = 200, 64
_UNHEARD = (
    "autoscaler.pool.unknown",
    "quota.pool.oversubscribed",
    "quota.pool.unknown",
    "scheduler.virtual_pool.unknown",
)


T = TypeVar("T")


class DemoFailed(Exception):
    """The demo did not show what it should; the message says what."""


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A tenant of the demo and a client with its own key."""

    name: str
    tenant_id: str
    virtual_pool: VirtualPoolView
    client: Client


@dataclass(frozen=True, slots=True)
class DemoJobs:
    """What was submitted."""

    training: JobView
    short: list[JobView]
    too_large: JobView


def prepare_tenants(operator: Client, node: NodeView, url: str) -> tuple[DemoTenant, DemoTenant]:
    """Two tenants that share this machine: `lab` is sure of a half of it, `shop` of a quarter.

    `shop` may also hold twice this machine: its limits leave room for more nodes to come.
    """
    share_pool_between_users(operator, node)
    lab = _make_tenant(operator, node, url, "lab", "Asia/Shanghai", 2, 4)
    shop = _make_tenant(operator, node, url, "shop", "Europe/Berlin", 1, 8)
    return lab, shop


def publish_prices(operator: Client) -> PriceVersionView:
    """Prices of the demo, once they are in force: high, so that seconds of use show in whole cents."""
    lines = (
        PriceLine(sku="device/*/on_demand", per_hour=ExactDecimal("360")),
        PriceLine(sku="cpu/*/on_demand", per_hour=ExactDecimal("36")),
        PriceLine(sku="memory/*/on_demand", per_hour=ExactDecimal("3.6")),
    )
    spec = PriceVersionSpec(lines=lines, minimum_seconds=10, note="prices of the demo")
    published = operator.price_books.publish(spec)
    time.sleep(max(0.0, published.valid_from.timestamp() - time.time()) + 0.2)
    return published


def share_pool_between_users(operator: Client, node: NodeView) -> None:
    """Lets both tenants' tasks run on this machine even where the agent cannot give each task a user of its own."""
    pool = operator.pools.get(node.pool_id)
    if not pool.allow_shared_users:
        fields = pool.model_dump(mode="json", include=set(PoolSpec.model_fields))
        operator.pools.replace(pool, PoolSpec.model_validate({**fields, "allow_shared_users": True}))


def _make_tenant(
    operator: Client, node: NodeView, url: str, name: str, zone: str, sure_quarters: int, most_quarters: int
) -> DemoTenant:
    tenant = operator.tenants.create(TenantSpec(name=name, timezone=zone))
    key = operator.api_keys.create(
        ApiKeySpec(name=f"{name}-portal", role=Role.TENANT_ADMIN, tenant_id=tenant.tenant_id)
    )
    flavors = sorted({device.flavor for device in node.devices})
    limits = Limits(
        cpu=_limit(node.cpu_milli, sure_quarters, most_quarters),
        memory=_limit(node.memory_mib, sure_quarters, most_quarters),
        devices={flavor: Limit(borrow=1000 * len(node.devices)) for flavor in flavors},
    )
    spec = VirtualPoolSpec(name=f"{name}-share", tenant_id=tenant.tenant_id, pool_id=node.pool_id, limits=limits)
    made = until_accepted(lambda: operator.virtual_pools.create(spec))
    assert key.secret is not None, "the answer that creates a key shows it"
    return DemoTenant(name, str(tenant.tenant_id), made, Client(url=url, api_key=key.secret))


def _limit(amount: int, sure_quarters: int, most_quarters: int) -> Limit:
    guaranteed, most = amount * sure_quarters // 4, amount * most_quarters // 4
    return Limit(guaranteed=guaranteed, borrow=most - guaranteed)


def until_accepted(create: Callable[[], T]) -> T:
    """Services hear of one another's objects by events; for a moment one may know less than we do."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return create()
        except MillpondError as error:
            if error.code not in _UNHEARD or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def submit_jobs(lab: DemoTenant, shop: DemoTenant, node: NodeView, python: TaskPython) -> DemoJobs:
    """The lab trains; the shop runs short jobs and asks for half again as much memory as this machine has."""
    source = resources.files("millpond.demo").joinpath("programs/train_spirals.py").read_text(encoding="utf-8")
    training = _submit(
        lab,
        "train-spirals",
        [python.program, "-c", source],
        min(1000, lab.virtual_pool.limits.cpu.cap),
        512,
        env={**python.environment, "DEMO_SECONDS": str(TRAINING_SECONDS), "OPENBLAS_NUM_THREADS": "1"},
    )
    short = [
        _submit(
            shop,
            f"report-{number}",
            ["/bin/sh", "-c", f"echo report {number} begins; sleep {1 + number % 3}; echo report {number} done"],
            _SHORT_CPU_MILLI,
            _SHORT_MEMORY_MIB,
        )
        for number in range(1, SHORT_JOBS + 1)
    ]
    too_large = _submit(shop, "too-large", ["/bin/true"], 100, node.memory_mib * 3 // 2)
    return DemoJobs(training, short, too_large)


def _submit(
    tenant: DemoTenant,
    name: str,
    command: list[str],
    cpu_milli: int,
    memory_mib: int,
    env: dict[str, str] | None = None,
) -> JobView:
    group = GroupSpec(
        resources=Resources(cpu_milli=cpu_milli, memory_mib=memory_mib),
        run=RunSpec(command=tuple(command), env=env or {}),
    )
    spec = JobSpec(
        name=name,
        virtual_pool=tenant.virtual_pool.virtual_pool_id,
        groups=(group,),
        labels={"demo": "yes"},
    )
    return tenant.client.jobs.submit(spec)


def wait_for_explanation(tenant: DemoTenant, job: JobView) -> Explanation:
    """Why the job that cannot fit waits."""
    deadline = time.monotonic() + 10
    while True:
        explanation = tenant.client.jobs.explain(job.job_id)
        if explanation.nodes or time.monotonic() > deadline:
            return explanation
        time.sleep(0.2)


def list_states(lab: DemoTenant, shop: DemoTenant, jobs: DemoJobs) -> list[JobView]:
    """All jobs of the demo as they are now, the training first."""
    wanted = [jobs.training, *jobs.short, jobs.too_large]
    now = {job.job_id: job for tenant in (lab, shop) for job in tenant.client.jobs.list(label="demo=yes")}
    return [now[job.job_id] for job in wanted]


def have_ended(states: list[JobView], jobs: DemoJobs) -> bool:
    """Whether everything that can run has run."""
    return all(job.state in FINAL for job in states if job.job_id != jobs.too_large.job_id)


def failures(states: list[JobView], jobs: DemoJobs) -> list[str]:
    """What did not end as it should."""
    return [
        f"{job.name} ended as {job.state.value} ({job.reason}): {job.message or 'no message'}"
        for job in states
        if job.job_id != jobs.too_large.job_id and job.state is not JobState.SUCCEEDED
    ]


def journal_folder(stack_folder: Path) -> Path:
    """Where this machine's agent keeps its journal."""
    return stack_folder / "agent" / "spool"
