"""What must exist before the first machine joins."""

from millpond_kernel.db import SYSTEM, Database
from millpond_registry.usecases.flavors import install_builtin_flavors
from millpond_registry.usecases.pools import ensure_a_pool


async def prepare(database: Database) -> None:
    """Makes the first pool and the catalogue's flavors where they are missing; every process calls it."""
    async with database.begin(SYSTEM) as unit:
        await ensure_a_pool(unit)
        await install_builtin_flavors(unit)
