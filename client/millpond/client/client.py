"""The client: where Millpond is, with which key, and all nouns."""

import os
from collections.abc import Callable, Mapping, Sequence
from time import sleep as real_sleep
from types import TracebackType
from typing import Self

import httpx

from millpond.client.api_keys import ApiKeys
from millpond.client.bills import Charges, PriceBooks, Reconciliations, Reports, Statements
from millpond.client.calls import get
from millpond.client.errors import InvalidRequest
from millpond.client.events import Audit, Events, Health
from millpond.client.exports import Exports
from millpond.client.flavors import Flavors
from millpond.client.jobs import JobRef, Jobs
from millpond.client.nodes import Devices, JoinTokens, Nodes
from millpond.client.packings import Packings
from millpond.client.pools import Pools
from millpond.client.projects import Projects
from millpond.client.reservations import Reservations
from millpond.client.retries import RetryPolicy
from millpond.client.scaling import NodeOrders, ScalingDecisions, ScalingPolicies, Signals
from millpond.client.sending import Sender
from millpond.client.tenants import Tenants
from millpond.client.virtual_pools import VirtualPools
from millpond.client.work import Allocations, Queues, Usage
from millpond.profiles import Profile, find_profile
from millpond_contracts.bodies.groups import (
    DeviceRequest,
    GroupSpec,
    Preferences,
    Resources,
    RunSpec,
    SimulateSpec,
    TaskKind,
)
from millpond_contracts.bodies.jobs import JobDetail, JobSpec, JobView
from millpond_contracts.bodies.plans import PlanView
from millpond_contracts.bodies.tenants import Me, VirtualPoolView
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.ids import TaskId, TenantId

USER_AGENT = "millpond-python"


class Client:
    """Talks to one Millpond. Every noun is an attribute: `client.tenants`, `client.jobs`, ….

    Args:
        url: The base URL; None = the profile's.
        api_key: The API key or token; None = the profile's.
        profile: Which profile of the command line to use; None = MILLPOND_PROFILE, else the current one. MILLPOND_URL
            and MILLPOND_API_KEY win over it.
        timeout_seconds: For one request.
        retries: When a request is sent again.
        transport: Replaces the network, for tests.
        sleep: Replaces waiting, for tests.

    Raises:
        NoProfile: nothing says where Millpond is.
        InvalidRequest: the address is none.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | None = None,
        timeout_seconds: float = 30.0,
        retries: RetryPolicy = RetryPolicy(),
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = real_sleep,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.profile = (
            Profile(url=url, api_key=api_key)
            if url is not None and api_key is not None
            else _overridden(find_profile(profile, environment), url, api_key)
        )
        http = _connections(self.profile, timeout_seconds, transport)
        sender = self._sender = Sender(http, retries, sleep)
        self.tenants = Tenants(sender)
        self.projects = Projects(sender)
        self.api_keys = ApiKeys(sender)
        self.packings = Packings(sender)
        self.pools = Pools(sender)
        self.nodes = Nodes(sender)
        self.devices = Devices(sender)
        self.flavors = Flavors(sender)
        self.join_tokens = JoinTokens(sender)
        self.virtual_pools = VirtualPools(sender)
        self.reservations = Reservations(sender)
        self.jobs = Jobs(sender)
        self.allocations = Allocations(sender)
        self.usage = Usage(sender)
        self.queues = Queues(sender)
        self.price_books = PriceBooks(sender)
        self.statements = Statements(sender)
        self.charges = Charges(sender)
        self.exports = Exports(sender)
        self.reconciliations = Reconciliations(sender)
        self.reports = Reports(sender)
        self.scaling_policies = ScalingPolicies(sender)
        self.scaling_decisions = ScalingDecisions(sender)
        self.node_orders = NodeOrders(sender)
        self.signals = Signals(sender)
        self.events = Events(sender)
        self.audit = Audit(sender)
        self.health = Health(sender)

    @property
    def url(self) -> str:
        """The base URL."""
        return self.profile.url

    def me(self) -> Me:
        """Who these credentials are."""
        return self._sender.send(get("/v1/me", Me))

    def find_virtual_pool(self, virtual_pool: str | None = None, *, tenant: str | None = None) -> VirtualPoolView:
        """The virtual pool meant by an id or name; None = the profile's, else the only one there is."""
        tenant_id: TenantId | None = None if tenant is None else self.tenants.id_of(tenant)
        wanted = virtual_pool or (self.profile.virtual_pool if tenant is None else None)
        if wanted is None:
            return self.virtual_pools.get_only(tenant_id=tenant_id)
        return self.virtual_pools.get(wanted, tenant_id=tenant_id)

    def submit(
        self,
        command: Sequence[str] = (),
        *,
        cpu_milli: int,
        memory_mib: int,
        name: str = "job",
        devices: DeviceRequest | None = None,
        count: int = 1,
        gang: bool = False,
        virtual_pool: str | None = None,
        priority: int = 50,
        time_limit_seconds: int | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        image: str | None = None,
        simulate: SimulateSpec | None = None,
    ) -> JobView:
        """Submits a job of one group; for more, build a `JobSpec` for `client.jobs.submit`.

        Args:
            command: The program and its arguments; no shell interprets them. May be left out with `simulate`.
            cpu_milli: Thousandths of a core per task.
            memory_mib: MiB per task.
            name: Lower case; need not be unique.
            devices: Accelerators per task.
            count: How many tasks of this kind.
            gang: They start all together or not at all.
            virtual_pool: Id or name; None = the profile's, else the only one there is.
            priority: 0 to 1000, higher goes first.
            time_limit_seconds: For each task from the moment it is active.
            env: Variables of the task's environment.
            labels: For finding and billing.
            image: A container image; None = a process on the node.
            simulate: How simulated nodes act the tasks out; None = they run, on real nodes.
        """
        group = GroupSpec(
            count=count,
            gang=gang,
            resources=Resources(
                cpu_milli=cpu_milli, memory_mib=memory_mib, devices=() if devices is None else (devices,)
            ),
            run=RunSpec(command=tuple(command), image=image, env=dict(env or {}), simulate=simulate),
        )
        spec = JobSpec(
            name=name,
            virtual_pool=self.find_virtual_pool(virtual_pool).virtual_pool_id,
            priority=priority,
            groups=(group,),
            time_limit_seconds=time_limit_seconds,
            labels=dict(labels or {}),
        )
        return self.jobs.submit(spec)

    def plan(
        self,
        command: Sequence[str],
        *,
        cpu_milli: int,
        memory_mib: int,
        devices: DeviceRequest | None = None,
        count: int = 1,
        gang: bool = False,
        virtual_pool: str | None = None,
        time_limit_seconds: int | None = None,
        task_kind: TaskKind = TaskKind.GENERAL,
    ) -> PlanView:
        """Says where such a job would start now and what it would cost; `client.jobs.plan` takes a whole `JobSpec`.

        Args:
            command: The program and its arguments.
            cpu_milli: Thousandths of a core per task.
            memory_mib: MiB per task.
            devices: Accelerators per task.
            count: How many tasks of this kind.
            gang: They start all together or not at all.
            virtual_pool: Id or name; None = the profile's, else the only one there is.
            time_limit_seconds: For each task; with one there is an expected total.
            task_kind: What the tasks do: the devices nearest to such work come first.
        """
        resources = Resources(cpu_milli=cpu_milli, memory_mib=memory_mib, devices=() if devices is None else (devices,))
        group = GroupSpec(
            count=count,
            gang=gang,
            resources=resources,
            prefers=Preferences(task_kind=task_kind),
            run=RunSpec(command=tuple(command)),
        )
        pool = self.find_virtual_pool(virtual_pool)
        return self.jobs.plan(
            JobSpec(
                name="plan",
                virtual_pool=pool.virtual_pool_id,
                groups=(group,),
                time_limit_seconds=time_limit_seconds,
            )
        )

    def wait(self, job: JobRef, *, timeout_seconds: float | None = None) -> JobDetail:
        """The job once it has ended; see `client.jobs.wait`."""
        return self.jobs.wait(job, timeout_seconds=timeout_seconds)

    def logs(self, job: JobRef, *, task_id: TaskId | None = None) -> str:
        """What a task of the job has printed so far; without a task, the first one."""
        return self.jobs.logs(job, task_id=task_id)

    def explain(self, job: JobRef) -> Explanation:
        """Why a job waits."""
        return self.jobs.explain(job)

    def cancel(self, job: JobRef) -> JobView:
        """Ends a job."""
        return self.jobs.cancel(job)

    def close(self) -> None:
        """Closes the connections."""
        self._sender.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _overridden(profile: Profile, url: str | None, api_key: str | None) -> Profile:
    return Profile(url=url or profile.url, api_key=api_key or profile.api_key, virtual_pool=profile.virtual_pool)


def _connections(profile: Profile, timeout_seconds: float, transport: httpx.BaseTransport | None) -> httpx.Client:
    # A proxy of the environment never stands between this machine and itself.
    direct = None if transport is not None else dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))
    if not profile.url.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"expected an address such as http://127.0.0.1:7070, found {profile.url!r}", code="client.address.invalid"
        )
    try:
        return httpx.Client(
            base_url=profile.url,
            headers={"Authorization": f"Bearer {profile.api_key}", "User-Agent": USER_AGENT},
            timeout=timeout_seconds,
            transport=transport,
            mounts=direct,
        )
    except (httpx.InvalidURL, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"the address or key cannot be used ({error}); expected an address such as http://127.0.0.1:7070",
            code="client.address.invalid",
        ) from error
