"""What a test of the client works with; everything synchronous runs beside the servers' event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.cli.session import Session
from millpond.client.client import Client
from millpond.client.errors import NotFound
from millpond_contracts.bodies.pools import PoolSpec
from millpond_contracts.bodies.tenants import ApiKeySpec, Limit, Limits, Role, TenantSpec, VirtualPoolSpec
from tests.waiting import eventually

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Served:
    """Services at an address, and the operator's client."""

    url: str
    operator_key: str
    client: Client

    async def call(self, work: Callable[[], Answer]) -> Answer:
        """What `work` returns, in a thread of its own."""
        return await asyncio.to_thread(work)

    async def run(self, *arguments: str, key: str | None = None, code: int = 0) -> str:
        """Runs a command line, checks its exit code, and returns what it printed."""
        ended, said = await self.try_to_run(*arguments, key=key)
        assert ended == code, f"{arguments}: {ended}\n{said}"
        return said

    async def try_to_run(self, *arguments: str, key: str | None = None) -> tuple[int, str]:
        """Runs a command line; its exit code, and what it printed, or said on stderr if nothing."""
        environment = {"MILLPOND_URL": self.url, "MILLPOND_API_KEY": key or self.operator_key, "COLUMNS": "240"}
        result = await asyncio.to_thread(
            CliRunner().invoke, app, list(arguments), obj=Session(), env=environment | {"NO_COLOR": "1"}
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout or result.stderr

    async def make_tenant(self, name: str = "acme") -> str:
        """A tenant with a share of a pool that has no machines yet, and its admin's key."""

        def make() -> str:
            client = self.client
            if not list(client.pools.list(name="metal")):
                client.pools.create(PoolSpec(name="metal", allow_oversubscription=True))
            tenant = client.tenants.create(TenantSpec(name=name))
            key = client.api_keys.create(ApiKeySpec(name="admin", role=Role.TENANT_ADMIN, tenant_id=tenant.tenant_id))
            assert key.secret is not None
            return key.secret

        async def shared() -> bool:
            return await self.call(lambda: self._try_share(name))

        secret = await self.call(make)
        await eventually(shared)
        return secret

    def _try_share(self, name: str) -> bool:
        # Quota knows a pool from the registry's events, which take a moment.
        client = self.client
        limits = Limits(cpu=Limit(guaranteed=4000), memory=Limit(guaranteed=8192))
        spec = VirtualPoolSpec(
            name="main", tenant_id=client.tenants.id_of(name), pool_id=client.pools.id_of("metal"), limits=limits
        )
        try:
            client.virtual_pools.create(spec)
        except NotFound:
            return False
        return True
