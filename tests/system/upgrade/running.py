"""One upgrade: a database, its nodes and tenants, the load, the order of `docs/upgrading.md`, and the verdict."""

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from millpond.stack.ephemeral import EphemeralEngines
from millpond.stack.ports import HeldPorts
from tests.system.chaos.load import ChaosLoad, Submitter
from tests.system.checker import judge
from tests.system.checker_delivery import list_consumers
from tests.system.client import Caller, make_tenant, open_caller, publish_prices, submit, wait_for_job
from tests.system.stack import Stack
from tests.system.upgrade.front import Front, open_front
from tests.system.upgrade.versions import STALE_STATEMENT, Installation, Version, check_out, this_version
from tests.waiting import eventually

_READY_SECONDS = 90
_QUIET_SECONDS = 120
_FLAVOR = "upgrade-gpu"
_GPU_NODE = {"model": "A100 SXM4 80GB", "devices": 4, "cpu_milli": 16000, "memory_mib": 65536}
_FIRST_JOBS = 4
_SCHEDULER = "scheduler"


@dataclass(slots=True)
class Upgrade:
    """Both versions on one installation, and the clients that must not notice.

    Attributes:
        outside, inside: What clients and agents, and what services ask.
        phases: Phase -> operations that were acknowledged in it.
        ended_consumers: Those that only the new version has, once its workers are gone again.
        exporter: Asks for an export in every phase, which Celery of one version or the other writes.
    """

    old: Version
    new: Version
    site: Installation
    outside: Front
    outside_url: str
    inside: Front
    ports: HeldPorts
    load: ChaosLoad | None
    phase_seconds: float
    tell: Callable[[str], None]
    phases: dict[str, int]
    urls: dict[str, tuple[str, str]]
    ended_consumers: set[str] = field(default_factory=set)
    exporter: Caller | None = None
    exports: dict[str, str] = field(default_factory=dict)

    async def start_http(self, version: Version) -> None:
        """Starts the HTTP process of a version and sends it its share of requests once it is ready."""
        public, internal = self.ports.take(), self.ports.take()
        where = ("--port", str(public), "--internal-port", str(internal))
        kind = ("http", "--services", ",".join(version.services))
        self.site.start(version, "http", "millpond_kernel.serve", *kind, *where)
        urls = self.urls[version.name] = f"http://127.0.0.1:{public}", f"http://127.0.0.1:{internal}"
        async with httpx.AsyncClient(base_url=urls[0], timeout=5) as http:

            async def is_ready() -> bool:
                assert self.site.is_running(version, "http"), self.site.log_of(f"{version.name}-http")
                try:
                    answers = [await http.get(f"/readyz/{service}") for service in version.services]
                except httpx.HTTPError:
                    return False
                return all(answer.status_code == 200 for answer in answers)

            # The first ones ask one another for keys, so they are reachable before they are ready.
            self.inside.upstreams = [*self.inside.upstreams, urls[1]]
            await eventually(is_ready, _READY_SECONDS)
        self.outside.upstreams = [*self.outside.upstreams, urls[0]]

    async def stop_http(self, version: Version) -> None:
        """Takes the HTTP process of a version out of the fronts and ends it."""
        public, internal = self.urls[version.name]
        self.outside.upstreams = [url for url in self.outside.upstreams if url != public]
        self.inside.upstreams = [url for url in self.inside.upstreams if url != internal]
        await asyncio.to_thread(self.site.stop, version, "http")

    async def start_worker(self, version: Version, name: str, *services: str) -> None:
        """Starts a worker of a version and waits until it has told the database that it is ready."""
        arguments = ("worker", "--services", ",".join(services))
        pid = self.site.start(version, name, "millpond_kernel.serve", *arguments)
        connection = await asyncpg.connect(self.site.owner_url)
        try:

            async def is_ready() -> bool:
                assert self.site.is_running(version, name), self.site.log_of(f"{version.name}-{name}")
                query = f"SELECT count(*) FROM {services[0]}.worker_state WHERE pid = $1 AND ready"
                return bool(await connection.fetchval(query, pid))

            await eventually(is_ready, _READY_SECONDS)
        finally:
            await connection.close()

    async def replace_worker(self, before: Version, after: Version, name: str, *services: str) -> None:
        """Both run for a phase, then the later one alone."""
        await self.start_worker(after, name, *services)
        await self.phase(f"{name}: {before.name}, with {after.name} beside it")
        await asyncio.to_thread(self.site.stop, before, name)
        await self.phase(f"{name}: {after.name} alone")

    async def start_celery(self, version: Version) -> None:
        """Starts Celery of a version, and waits until it listens beside whoever does."""
        arguments = (
            "--pool",
            "solo",
            "--loglevel",
            "info",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        )
        self.site.start(version, "celery", "celery", "-A", "millpond_billing.celery_app", "worker", *arguments)

        async def listens() -> bool:
            assert self.site.is_running(version, "celery"), self.site.log_of(f"{version.name}-celery")
            return "ready." in self.site.log_of(f"{version.name}-celery")

        await eventually(listens, _READY_SECONDS)

    async def replace_celery(self, before: Version, after: Version) -> None:
        """Stops the one, then starts the other: what was asked for meanwhile waits."""
        await asyncio.to_thread(self.site.stop, before, "celery")
        await self.phase(f"no celery, {before.name} stopped")
        await self.start_celery(after)
        await self.phase(f"celery: {after.name}")

    def start_fleet(self, version: Version, folder: Path, token: str) -> None:
        """Starts simulated nodes of a version; they join, or go on where another version's were."""
        folder.mkdir(mode=0o700, exist_ok=True)
        description = folder / "nodes.yaml"
        description.write_text(json.dumps({"nodes": [{"name": folder.name, "count": 2, **_GPU_NODE}]}))
        where = ("run", "--simulate", str(description), "--url", self.outside_url, "--state-dir", str(folder / "state"))
        self.site.start(version, folder.name, "millpond_node_agent.main", *where, MILLPOND_JOIN_TOKEN=token)

    def start_agent(self, version: Version, token: str) -> None:
        """Starts the agent of this machine; what it runs outlives it."""
        state, work = self.site.stack.agent_folder, self.site.stack.base / "agent-tasks"
        state.mkdir(mode=0o700, exist_ok=True)
        work.mkdir(exist_ok=True)
        work.chmod(0o711)
        where = ("run", "--url", self.outside_url, "--state-dir", str(state), "--work-dir", str(work))
        self.site.start(version, "agent", "millpond_node_agent.main", *where, MILLPOND_JOIN_TOKEN=token)

    async def phase(self, name: str) -> None:
        """Lets time pass under load; every phase must acknowledge something."""
        assert self.load is not None
        assert self.exporter is not None
        assert name not in self.phases, "what this phase shows would replace what another showed"
        began = time.monotonic()
        asked = await self.exporter.patiently("POST", "/v1/exports", {"format": "jsonl"})
        self.exports[name] = str(asked.json()["export_id"])
        await asyncio.sleep(self.phase_seconds)
        self.phases[name] = len(self.load.acknowledged(began))
        self.tell(f"{name}: {self.phases[name]} acknowledged")


def run(commit: str, phase_seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Upgrades from a commit to this tree, and back where the commit can go back; the summary with what was found."""
    with tempfile.TemporaryDirectory(prefix="millpond-upgrade-") as scratch:
        Path(scratch).chmod(0o711)
        with check_out(commit, Path(scratch), tell) as old, EphemeralEngines() as engines:
            stack = Stack.make(split=False)
            try:
                return asyncio.run(_run_on(stack, engines, old, commit, phase_seconds, tell))
            finally:
                stack.close()


async def _run_on(
    stack: Stack,
    engines: EphemeralEngines,
    old: Version,
    commit: str,
    phase_seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    async with AsyncExitStack() as exits:
        outside, outside_url = await exits.enter_async_context(open_front())
        inside, inside_url = await exits.enter_async_context(open_front())
        ports = exits.enter_context(HeldPorts())
        site = Installation(stack, engines.postgres_url, engines.redis_url, inside_url)
        _prepare_folders(stack, site)
        exits.push_async_callback(asyncio.to_thread, site.stop_all)
        upgrade = Upgrade(
            old, this_version(), site, outside, outside_url, inside, ports, None, phase_seconds, tell, {}, {}
        )
        began = time.monotonic()
        findings = await _upgrade(upgrade)
        assert upgrade.load is not None
        return {
            "from": commit,
            "ran_s": round(time.monotonic() - began, 1),
            "acknowledged": len(upgrade.load.acknowledged()),
            "phases": upgrade.phases,
            "went_back": old.may_be_behind,
            "stale_statements": _count_stale(upgrade).total(),
            "answered": outside.answered.total(),
            "findings": findings,
        }


def _prepare_folders(stack: Stack, site: Installation) -> None:
    for folder in (stack.paths.secrets, stack.paths.logs, stack.paths.work):
        folder.mkdir(parents=True, exist_ok=True)
    known = {"MILLPOND_OWNER_DATABASE_URL": site.owner_url, "MILLPOND_REDIS_URL": site.redis_url}
    (stack.paths.secrets / "environment.json").write_text(json.dumps(known), encoding="utf-8")


async def _upgrade(upgrade: Upgrade) -> list[str]:
    old, new, site = upgrade.old, upgrade.new, upgrade.site
    others = tuple(service for service in old.services if service != _SCHEDULER)
    for module in ("millpond_kernel.migrate", "millpond_quota.bootstrap"):
        upgrade.tell(f"old {module}: {await asyncio.to_thread(site.run_step, old, module)}")
    await upgrade.start_http(old)
    await upgrade.start_worker(old, "worker", *others)
    await upgrade.start_worker(old, "worker-scheduler", _SCHEDULER)
    await upgrade.start_celery(old)
    async with open_caller(upgrade.outside_url, site.operator_key) as operator, _load(upgrade, operator) as tokens:
        await upgrade.phase("old alone")
        consumers = await _list_consumers(site)
        upgrade.tell(await asyncio.to_thread(site.run_step, new, "millpond_kernel.migrate"))
        await upgrade.phase("old after the migration")
        await asyncio.to_thread(site.run_step, new, "millpond_quota.bootstrap")
        await upgrade.replace_worker(old, new, "worker", *others)
        upgrade.start_fleet(new, site.stack.base / "late", tokens["late"])
        await _work_on_late_nodes(upgrade, operator)
        await upgrade.replace_worker(old, new, "worker-scheduler", _SCHEDULER)
        await upgrade.start_http(new)
        await upgrade.phase("HTTP processes of both versions")
        await upgrade.stop_http(old)
        await upgrade.replace_celery(old, new)
        await upgrade.phase("new services, old agents")
        for name in ("agent", "early"):
            await asyncio.to_thread(site.stop, old, name)
        upgrade.start_agent(new, tokens["machines"])
        upgrade.start_fleet(new, site.stack.base / "early", tokens["early"])
        await upgrade.phase("new alone")
        if old.may_be_behind:
            await _go_back(upgrade, others)
            upgrade.ended_consumers = await _list_consumers(site) - consumers
        return await _judge(upgrade, operator)


async def _list_consumers(site: Installation) -> set[str]:
    connection = await asyncpg.connect(site.owner_url)
    try:
        return await list_consumers(connection)
    finally:
        await connection.close()


async def _go_back(upgrade: Upgrade, others: tuple[str, ...]) -> None:
    """The way back of `docs/upgrading.md`: services under agents of the new version, which stay."""
    old, new = upgrade.old, upgrade.new
    upgrade.tell(await asyncio.to_thread(upgrade.site.run_step, old, "millpond_kernel.migrate"))
    await upgrade.start_http(old)
    await upgrade.stop_http(new)
    await upgrade.replace_worker(new, old, "worker-scheduler", _SCHEDULER)
    await upgrade.replace_celery(new, old)
    await upgrade.replace_worker(new, old, "worker", *others)


@asynccontextmanager
async def _load(upgrade: Upgrade, operator: Caller) -> AsyncIterator[dict[str, str]]:
    """Nodes of the old version, tenants on them, and clients of every kind; the join tokens by pool."""
    await publish_prices(operator, minimum_seconds=2)
    flavor = {"name": _FLAVOR, "selector": {"vendor": "nvidia", "model_prefix": "A100"}}
    assert (await operator.patiently("POST", "/v1/flavors", flavor)).status_code == 201
    pools, tokens = {}, {}
    for name in ("early", "late", "machines"):
        pools[name] = str((await operator("POST", "/v1/pools", {"name": name}, expect=201)).json()["pool_id"])
        body = {"pool_id": pools[name], "max_uses": 10}
        tokens[name] = (await operator("POST", "/v1/join-tokens", body, expect=201)).json()["token"]
    upgrade.start_fleet(upgrade.old, upgrade.site.stack.base / "early", tokens["early"])
    upgrade.start_agent(upgrade.old, tokens["machines"])
    nodes = await eventually(lambda: _ready_nodes(operator, 3), _READY_SECONDS)
    machine = await make_tenant(operator, "machines", pool_id=pools["machines"])
    early = await make_tenant(operator, "early", pool_id=pools["early"], cpu_milli=20000, memory_mib=65536)
    upgrade.exporter = early.caller
    submitters = [Submitter(early, 16, devices=_FLAVOR), Submitter(machine, 3, is_real=True)]
    load = upgrade.load = ChaosLoad(upgrade.site.stack, operator, random.Random(1), submitters, "", nodes)
    policy = {"name": "upgrade", "pool_id": pools["early"], "flavor": _FLAVOR, "enabled": False, "template": _GPU_NODE}
    made = await operator("POST", "/v1/scaling-policies", policy, expect=201)
    load.policy_id = str(made.json()["scaling_policy_id"])
    running = asyncio.create_task(load.run())
    try:
        yield tokens
    finally:
        load.end()
        running.cancel()


async def _ready_nodes(operator: Caller, count: int) -> list[str] | None:
    nodes = await operator.items("/v1/nodes")
    ready = [str(node["node_id"]) for node in nodes if node["schedulable"] and node["name"].startswith("early")]
    return ready if sum(bool(node["schedulable"]) for node in nodes) >= count else None


async def _work_on_late_nodes(upgrade: Upgrade, operator: Caller) -> None:
    """Agents of the new version join, are heard and work, while only old HTTP processes answer them."""
    assert upgrade.load is not None
    pools = {pool["name"]: str(pool["pool_id"]) for pool in await operator.items("/v1/pools")}
    tenant = await make_tenant(operator, "late", pool_id=pools["late"])
    run = {"simulate": {"seconds": 1}}
    for number in range(_FIRST_JOBS):
        group = {"count": 1, "resources": {"cpu_milli": 250, "memory_mib": 64}, "run": run}
        body = {"name": f"late-{number}", "virtual_pool": tenant.virtual_pool, "groups": [group]}
        job = await wait_for_job(tenant, await submit(tenant, upgrade.load.history, body), seconds=_READY_SECONDS)
        assert job["state"] == "succeeded", job
    upgrade.tell(f"agents of the new version, old HTTP processes: {_FIRST_JOBS} jobs")


async def _judge(upgrade: Upgrade, operator: Caller) -> list[str]:
    """What the checker finds, and what this run must have shown."""
    load, site = upgrade.load, upgrade.site
    assert load is not None
    load.end()
    folders = [site.stack.base / name for name in ("early", "late")]
    facts = await judge(
        site.stack,
        operator,
        load.history,
        quiet_seconds=_QUIET_SECONDS,
        agent_folders=folders,
        ended=upgrade.ended_consumers,
    )
    findings = [f"{finding.fault}: {finding.text}" for finding in facts.findings]
    findings += [f"doubled: {text}" for text in await load.judge_witnesses()]
    stale = _count_stale(upgrade)
    findings += [
        f"{one.action} was answered {text}"
        for one in load.history.operations
        for text in one.refusals[stale[one.request_id] :]
    ]
    findings += [f"nothing was acknowledged: {name}" for name, count in upgrade.phases.items() if not count]
    findings += [
        f"no export: {name}" for name, export in upgrade.exports.items() if not await _is_exported(upgrade, export)
    ]
    nodes = await operator.items("/v1/nodes")
    ready = Counter(node["pool_id"] for node in nodes if node["schedulable"])
    if sorted(ready.values()) != [1, 2, 2]:
        findings.append(f"nodes are not ready: {[(node['name'], node['state']) for node in nodes]}")
    return findings


def _count_stale(upgrade: Upgrade) -> Counter[str]:
    """Request id -> how many answers of 500 are the old version's known fault that `docs/upgrading.md` tells of."""
    if upgrade.old.asks_again:
        return Counter()
    return upgrade.site.failed_requests(upgrade.old, "http", STALE_STATEMENT)


async def _is_exported(upgrade: Upgrade, export: str) -> bool:
    assert upgrade.exporter is not None
    deadline = time.monotonic() + _QUIET_SECONDS
    while True:
        state = (await upgrade.exporter("GET", f"/v1/exports/{export}", expect=200)).json()["state"]
        if state not in ("queued", "running") or time.monotonic() > deadline:
            return bool(state == "ready")
        await asyncio.sleep(0.5)
