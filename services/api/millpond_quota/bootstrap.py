"""`python -m millpond_quota.bootstrap`: stores the first keys, made by whoever installs Millpond.

Reads `MILLPOND_OPERATOR_KEY` and each service's `MILLPOND_<SERVICE>_SERVICE_KEY`; storing them again changes nothing.
"""

import asyncio
import os
from collections.abc import Mapping

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.events import PUBLISHERS
from millpond_contracts.ids import ApiKeyId
from millpond_kernel.db import SYSTEM, Database
from millpond_quota.domain.keys import format_key, make_secret
from millpond_quota.settings import Settings
from millpond_quota.usecases.api_keys import insert_given_key


def make_key() -> str:
    """A new key, not stored anywhere yet."""
    return format_key(ApiKeyId.new(), make_secret())


def given_keys(environment: Mapping[str, str]) -> list[tuple[str, str, Role]]:
    """(key, name, role) of every key that the environment gives."""
    found = [(environment.get("MILLPOND_OPERATOR_KEY", ""), "first-operator", Role.OPERATOR)]
    found += [
        (environment.get(f"MILLPOND_{service.upper()}_SERVICE_KEY", ""), f"service-{service}", Role.SERVICE)
        for service in PUBLISHERS
    ]
    return [entry for entry in found if entry[0]]


async def bootstrap(database: Database, keys: list[tuple[str, str, Role]]) -> int:
    """Stores the keys that are not there yet; how many that were."""
    async with database.begin(SYSTEM) as unit:
        return sum([await insert_given_key(unit, text, name, role) for text, name, role in keys])


async def _main() -> None:
    settings = Settings()
    database = Database("quota", settings.database_url.get_secret_value(), pool_size=2)
    await database.open(settings.database_wait_seconds)
    try:
        await bootstrap(database, given_keys(os.environ))
    finally:
        await database.close()


if __name__ == "__main__":
    asyncio.run(_main())
