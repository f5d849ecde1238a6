"""Clients that ask a stack for changes of every kind, as fast as it answers, and keep the history of it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.system.checker import check_witnesses
from tests.system.client import (
    SUBMIT,
    Caller,
    History,
    Operation,
    Outcome,
    Tenant,
    job_body,
    job_of,
)
from tests.system.load import WITNESSED
from tests.system.stack import Stack

SETTLE_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_CANCELLED_RATIO = 0.12
_SERVICE_OF = {
    SUBMIT: "scheduler",
    "job.cancel": "scheduler",
    "project.create": "quota",
    "api_key.create": "quota",
    "virtual_pool.change": "quota",
    "join_token.create": "registry",
    "node.cordon": "registry",
    "node.uncordon": "registry",
    "price.publish": "billing",
    "scaling_policy.replace": "autoscaler",
}


@dataclass(slots=True)
class Submitter:
    """A tenant whose jobs keep its pool busy.

    Attributes:
        together: How many of its jobs may wait or run at a time.
        is_real: Its jobs are processes on this machine that leave witnesses; else simulated ones.
        devices: Flavor of device that some of its jobs ask for.
    """

    tenant: Tenant
    together: int
    is_real: bool = False
    devices: str | None = None
    open_jobs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ChaosLoad:
    """All clients of a run and what they know."""

    stack: Stack
    operator: Caller
    rng: random.Random
    submitters: Sequence[Submitter]
    policy_id: str
    nodes: Sequence[str]
    history: History = field(default_factory=History)
    _is_over: bool = False
    _count: int = 0

    def end(self) -> None:
        """Lets every client end after its present operation."""
        self._is_over = True

    async def run(self) -> None:
        """Asks until `end`; an operation that is under way is settled first."""
        makers: list[Callable[[], Awaitable[None]]] = [
            *(self._submitting(submitter) for submitter in self.submitters),
            *3 * (self._make_project, self._make_key, self._make_join_token),
            self._change_limits,
            self._replace_policy,
            self._publish_prices,
            self._cordon,
        ]
        async with asyncio.TaskGroup() as group:
            for make in makers:
                group.create_task(self._repeat(make))
            group.create_task(self._forget_ended())

    def acknowledged(self, since: float = 0.0) -> list[Operation]:
        """Operations that were acknowledged, of those invoked since an instant."""
        return [one for one in self.history.operations if one.outcome is Outcome.OK and one.invoked_at >= since]

    def services_heard(self, since: float) -> set[str]:
        """Services that acknowledged something that was asked for since an instant."""
        return {_SERVICE_OF[one.action] for one in self.acknowledged(since)}

    async def judge_witnesses(self) -> list[str]:
        """What the real tasks themselves wrote, against what the API says of their jobs."""
        states = {}
        for submitter in self.submitters:
            if submitter.is_real:
                mine = [one for one in self.history.submissions if one.name.startswith("real-") and one.acknowledged]
                for one in mine:
                    assert one.acknowledged is not None
                    states[one.name] = str((await job_of(submitter.tenant, one.acknowledged))["state"])
        return check_witnesses(self.stack.witnesses, states)

    async def _repeat(self, make: Callable[[], Awaitable[None]]) -> None:
        while not self._is_over:
            await make()
            await asyncio.sleep(_PAUSE_SECONDS * self.rng.uniform(0.5, 1.5))

    def _name(self, of: str) -> str:
        self._count += 1
        return f"{of}-{self._count:05}"

    def _submitting(self, submitter: Submitter) -> Callable[[], Awaitable[None]]:
        async def submit_or_cancel() -> None:
            if submitter.open_jobs and self.rng.random() < _CANCELLED_RATIO and not submitter.is_real:
                await self._cancel(submitter, self.rng.choice(list(submitter.open_jobs)))
            if len(submitter.open_jobs) < submitter.together:
                await self._submit(submitter)

        return submit_or_cancel

    async def _submit(self, submitter: Submitter) -> None:
        name = self._name("real" if submitter.is_real else "job")
        body = self._job(submitter, name)
        one = self.history.invoke(SUBMIT, name)
        answer = await submitter.tenant.caller.perform(one, "POST", "/v1/jobs", body, seconds=SETTLE_SECONDS)
        if one.outcome is Outcome.OK and answer is not None:
            one.acknowledged = str(answer.json()["job_id"])
            submitter.open_jobs[one.acknowledged] = name

    def _job(self, submitter: Submitter, name: str) -> dict[str, Any]:
        pool, seconds = submitter.tenant.virtual_pool, self.rng.uniform(0.3, 4)
        if submitter.is_real:
            command = ("/bin/sh", "-c", WITNESSED, str(self.stack.witnesses), name, f"{seconds:.2f}")
            return job_body(pool, name, command, cpu_milli=50, memory_mib=16)
        resources: dict[str, Any] = {"cpu_milli": self.rng.choice((100, 250, 1000)), "memory_mib": 64}
        if submitter.devices is not None and self.rng.random() < 0.6:
            share = {"count": 1, "milli": self.rng.choice((250, 500, 1000)), "flavors": [submitter.devices]}
            resources["devices"] = [share]
        count = self.rng.choice((1, 1, 1, 2, 4))
        group = {"count": count, "gang": count > 2, "resources": resources, "stop_grace_seconds": 2}
        group["run"] = {"simulate": {"seconds": seconds, "exit_code": int(self.rng.random() < 0.05)}}
        retry = {"max": 20, "on": ["node_lost", "preempted"]}
        priority = self.rng.choice((10, 50, 50, 90))
        return {"name": name, "virtual_pool": pool, "groups": [group], "priority": priority, "retry": retry}

    async def _cancel(self, submitter: Submitter, job_id: str) -> None:
        one = self.history.invoke("job.cancel", submitter.open_jobs.pop(job_id))
        caller = submitter.tenant.caller
        await caller.perform(one, "POST", f"/v1/jobs/{job_id}/cancel", is_keyed=False, seconds=SETTLE_SECONDS)

    async def _forget_ended(self) -> None:
        """Keeps the number of open jobs true, by one list per tenant and look."""
        while not self._is_over:
            for submitter in self.submitters:
                try:
                    pages = [
                        await submitter.tenant.caller.items(f"/v1/jobs?state={state}&limit=200")
                        for state in ("pending", "running")
                    ]
                except (AssertionError, httpx.HTTPError):
                    continue  # not answered now, or not with a list
                alive = {job["job_id"] for page in pages for job in page}
                submitter.open_jobs = {key: name for key, name in submitter.open_jobs.items() if key in alive}
            await asyncio.sleep(0.5)

    async def _create(self, action: str, path: str, key: str, body: dict[str, Any], name: str) -> None:
        one = self.history.invoke(action, name)
        answer = await self.operator.perform(one, "POST", path, body, seconds=SETTLE_SECONDS)
        if one.outcome is Outcome.OK and answer is not None:
            one.acknowledged = str(answer.json()[key])

    async def _make_project(self) -> None:
        name, tenant = self._name("project"), self.rng.choice(self.submitters).tenant
        body = {"name": name, "tenant_id": tenant.tenant_id}
        await self._create("project.create", "/v1/projects", "project_id", body, name)

    async def _make_key(self) -> None:
        name, tenant = self._name("key"), self.rng.choice(self.submitters).tenant
        body = {"name": name, "role": "member", "tenant_id": tenant.tenant_id}
        await self._create("api_key.create", "/v1/api-keys", "api_key_id", body, name)

    async def _make_join_token(self) -> None:
        name = self._name("token")
        await self._create("join_token.create", "/v1/join-tokens", "join_token_id", {"max_uses": 1}, name)

    async def _publish_prices(self) -> None:
        """Prices change while things run; not so often that a segment is a heap of pieces."""
        await asyncio.sleep(self.rng.uniform(1, 3))
        lines = [
            {"sku": "cpu/*/on_demand", "per_hour": f"{self.rng.uniform(1, 3600):.4f}"},
            {"sku": "memory/*/on_demand", "per_hour": f"{self.rng.uniform(1, 10):.4f}"},
            {"sku": "device/*/on_demand", "per_hour": f"{self.rng.uniform(1, 10000):.4f}"},
        ]
        body = {"currency": "CNY", "minimum_seconds": self.rng.choice((0, 1, 60)), "lines": lines}
        await self._create("price.publish", "/v1/price-books", "price_version_id", body, self._name("prices"))

    async def _change_limits(self) -> None:
        submitter = self.rng.choice(self.submitters)
        self._count += 1
        limits = {"cpu": {"guaranteed": 1000, "hard": 1000 + self._count % 200}, "memory": {"guaranteed": 4096}}
        if not submitter.is_real:
            limits["cpu"] = {"guaranteed": 20000, "hard": 20000 + self._count % 8000}
            limits["memory"] = {"guaranteed": 65536}
        devices = {submitter.devices: {"guaranteed": 4000}} if submitter.devices else {}
        path = f"/v1/virtual-pools/{submitter.tenant.virtual_pool}"
        await self._change("virtual_pool.change", path, "PATCH", {"limits": limits | {"devices": devices}})

    async def _replace_policy(self) -> None:
        path = f"/v1/scaling-policies/{self.policy_id}"
        await self._change("scaling_policy.replace", path, "PUT", None)

    async def _change(self, action: str, path: str, method: str, body: dict[str, Any] | None) -> None:
        """Changes what was read, by its tag; without a body the policy gets another cool-down."""
        read = await self.operator.attempt("GET", path)
        if read is None or read.status_code != 200:
            return
        if body is None:
            kept = ("name", "pool_id", "flavor", "enabled", "rules", "template")
            body = {name: read.json()[name] for name in kept}
            self._count += 1
            body["rules"] = {**body["rules"], "cool_down_seconds": 60 + self._count}
        one = self.history.invoke(action, path)
        await self.operator.perform(one, method, path, body, if_match=read.headers["ETag"])

    async def _cordon(self) -> None:
        """A node is closed for a moment; a repeat of what is done already leaves no audit row."""
        await asyncio.sleep(0.5)
        node = self.rng.choice(self.nodes)
        for action in ("cordon", "uncordon"):
            one = self.history.invoke(f"node.{action}", node, at_least=0)
            path = f"/v1/nodes/{node}/{action}"
            await self.operator.perform(one, "POST", path, {}, is_keyed=False, seconds=SETTLE_SECONDS)
