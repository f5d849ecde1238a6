"""The registry and quota in one process, with a join token at hand."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from millpond_kernel.db import SYSTEM, Database
from tests.factories.registry import Agent
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services


@dataclass(slots=True)
class Registry:
    """A running registry as its tests see it: over HTTP as an operator, and its tables through the door."""

    services: Services
    operator: Caller
    database: Database

    async def get(self, path: str, *, expect: int = 200) -> Any:
        """The JSON that an operator reads."""
        return (await self.operator("GET", path, expect=expect)).json()

    async def join_token(self, **spec: Any) -> str:
        """The text of a new join token."""
        return str((await self.operator("POST", "/v1/join-tokens", spec, expect=201)).json()["token"])

    def agent(self) -> Agent:
        """A machine with a key of its own."""
        return Agent(self.services.http)

    async def node(self, agent: Agent) -> dict[str, Any]:
        """The agent's node as an operator sees it."""
        return dict(await self.get(f"/v1/nodes/{agent.node_id}"))

    async def events(self, subject: str) -> list[str]:
        """The types of the events about an object, in the order of their writing."""
        async with self.database.begin(SYSTEM) as unit:
            rows = await unit.fetch("SELECT type, generation FROM outbox WHERE subject = $1 ORDER BY id", subject)
        generations = [row["generation"] for row in rows]
        assert generations == sorted(set(generations)), f"generations of {subject} do not rise: {generations}"
        return [row["type"].split(".")[1] for row in rows]


@pytest.fixture
async def registry(migrated: MigratedDatabase) -> AsyncIterator[Registry]:
    """Registry and quota without workers: what loops and consumers do, a test does itself."""
    async with (
        migrated.opened("registry") as database,
        run_services(migrated, ("quota", "registry"), workers=False) as services,
    ):
        yield Registry(services, services.as_key(), database)
