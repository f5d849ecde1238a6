"""SQL of flavors."""

import asyncpg

from millpond_contracts.bodies.nodes import FlavorSelector, FlavorSpec, FlavorView
from millpond_contracts.resources import DeviceKind
from millpond_kernel.uow import UnitOfWork

_COLUMNS = "name, kind, selector, profiles, builtin, generation"


def flavor_of(row: asyncpg.Record) -> FlavorView:
    """The flavor of a row."""
    return FlavorView(
        name=row["name"],
        kind=DeviceKind(row["kind"]),
        selector=FlavorSelector.model_validate(row["selector"]),
        profiles=tuple(row["profiles"]),
        builtin=row["builtin"],
        generation=row["generation"],
    )


async def read_all_flavors(unit: UnitOfWork) -> list[FlavorView]:
    """Every flavor, by name."""
    return [flavor_of(row) for row in await unit.fetch(f"SELECT {_COLUMNS} FROM flavor ORDER BY name")]


async def list_flavors(unit: UnitOfWork, after: str | None, limit: int) -> list[FlavorView]:
    """Flavors by name."""
    rows = await unit.fetch(f"SELECT {_COLUMNS} FROM flavor WHERE name > $1 ORDER BY name LIMIT $2", after or "", limit)
    return [flavor_of(row) for row in rows]


async def find_flavor(unit: UnitOfWork, name: str) -> FlavorView | None:
    """The flavor with this name."""
    row = await unit.fetchrow(f"SELECT {_COLUMNS} FROM flavor WHERE name = $1", name)
    return None if row is None else flavor_of(row)


async def lock_flavor(unit: UnitOfWork, name: str) -> FlavorView | None:
    """The flavor, its row kept for this transaction."""
    row = await unit.fetchrow(f"SELECT {_COLUMNS} FROM flavor WHERE name = $1 FOR UPDATE", name)
    return None if row is None else flavor_of(row)


async def insert_flavor(unit: UnitOfWork, flavor: FlavorView) -> bool:
    """Stores a flavor; False when its name is taken."""
    inserted = await unit.execute(
        f"INSERT INTO flavor ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING",
        flavor.name,
        flavor.kind,
        flavor.selector.model_dump(mode="json"),
        list(flavor.profiles),
        flavor.builtin,
        flavor.generation,
    )
    return inserted == 1


async def update_flavor(unit: UnitOfWork, current: FlavorView, spec: FlavorSpec) -> FlavorView:
    """The locked flavor after a replacement."""
    row = await unit.fetchrow(
        "UPDATE flavor SET kind = $2, selector = $3, profiles = $4, generation = generation + 1"
        f" WHERE name = $1 AND generation = $5 RETURNING {_COLUMNS}",
        current.name,
        spec.kind,
        spec.selector.model_dump(mode="json"),
        list(spec.profiles),
        current.generation,
    )
    assert row is not None, f"flavor {current.name} changed under its lock"
    return flavor_of(row)


async def delete_flavor(unit: UnitOfWork, name: str) -> None:
    """Removes the locked flavor."""
    deleted = await unit.execute("DELETE FROM flavor WHERE name = $1", name)
    assert deleted == 1, f"flavor {name} changed under its lock"
