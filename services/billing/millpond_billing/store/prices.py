"""Rows of price versions, and the price book they make."""

from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg

from millpond_billing.domain.prices import DEFAULT_CURRENCY, PriceBook, PriceLine, PriceVersion
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_contracts.bodies.bills import PriceLine as PriceLineBody
from millpond_contracts.bodies.bills import PriceVersionView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import PriceBookId, PriceVersionId, TenantId
from millpond_contracts.prices import Sku
from millpond_contracts.quantities import ExactDecimal, plain_decimal
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork

# One book for now; its id is fixed so that every installation agrees on it.
PUBLIC_BOOK = PriceBookId(int=0x0190_0000_0000_7000_8000_0000_0000_0001)


def price_version_view(row: asyncpg.Record) -> PriceVersionView:
    """The version of a row, for people."""
    return PriceVersionView(
        price_version_id=PriceVersionId.of(row["id"]),
        price_book_id=PriceBookId.of(row["price_book_id"]),
        tenant_id=None if row["tenant_id"] is None else TenantId.of(row["tenant_id"]),
        currency=row["currency"],
        valid_from=row["valid_from"],
        valid_to=row["valid_to"],
        minimum_seconds=row["minimum_seconds"],
        lines=tuple(PriceLineBody(sku=line["sku"], per_hour=ExactDecimal(line["per_hour"])) for line in row["lines"]),
        note=row["note"],
        example=row["example"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


def price_version(row: asyncpg.Record) -> PriceVersion:
    """The version of a row, for rating."""
    return PriceVersion(
        version_id=PriceVersionId.of(row["id"]),
        tenant_id=None if row["tenant_id"] is None else TenantId.of(row["tenant_id"]),
        currency=row["currency"],
        valid_from=instant_of(row["valid_from"]),
        valid_to=None if row["valid_to"] is None else instant_of(row["valid_to"]),
        minimum_seconds=row["minimum_seconds"],
        lines=tuple(
            PriceLine(Sku.parse(line["sku"]), Decimal(line["per_hour"]), Decimal(line["unit_price"]))
            for line in row["lines"]
        ),
        example=row["example"],
    )


def _line_document(line: PriceLine) -> dict[str, Any]:
    return {
        "sku": str(line.sku),
        "per_hour": plain_decimal(line.per_hour),
        "unit_price": plain_decimal(line.unit_price),
    }


async def load_price_book(unit: UnitOfWork) -> PriceBook:
    """All versions ever published."""
    rows = await unit.fetch("SELECT * FROM price_version ORDER BY valid_from, id")
    return PriceBook(tuple(price_version(row) for row in rows))


def book_currency(book: PriceBook) -> str:
    """The one currency of a book; that of the example as long as nothing is published."""
    return book.versions[0].currency if book.versions else DEFAULT_CURRENCY


async def insert_price_version(unit: UnitOfWork, version: PriceVersion, note: str) -> PriceVersionView:
    """A new version.

    Raises:
        ProblemError: 409 `billing.price.overlap`.
    """
    try:
        row = await unit.fetchrow(
            "INSERT INTO price_version (id, price_book_id, tenant_id, currency, valid_from, valid_to, minimum_seconds,"
            " lines, note, example, generation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 1) RETURNING *",
            version.version_id,
            PUBLIC_BOOK,
            version.tenant_id,
            version.currency,
            moment_of(version.valid_from),
            None if version.valid_to is None else moment_of(version.valid_to),
            version.minimum_seconds,
            [_line_document(line) for line in version.lines],
            note,
            version.example,
        )
    except asyncpg.ExclusionViolationError as error:
        raise ProblemError(ErrorCode.PRICE_OVERLAP, "Another version is in force at that time.") from error
    assert row is not None, "an insert returns its row"
    return price_version_view(row)


async def end_price_version(unit: UnitOfWork, version_id: PriceVersionId, valid_to: int) -> PriceVersionView:
    """The open version, now with an end."""
    row = await unit.fetchrow(
        "UPDATE price_version SET valid_to = $2, generation = generation + 1 "
        "WHERE id = $1 AND valid_to IS NULL RETURNING *",
        version_id,
        moment_of(valid_to),
    )
    if row is None:
        raise ProblemError(ErrorCode.PRICE_OVERLAP, f"Version {version_id} has an end already.")
    return price_version_view(row)


async def list_price_versions(unit: UnitOfWork, after: UUID | None, limit: int) -> list[asyncpg.Record]:
    """Versions by id that the scope of `unit` may see: for a tenant the public ones and its own."""
    return await unit.fetch(
        "SELECT * FROM price_version WHERE ($1::uuid IS NULL OR id > $1) ORDER BY id LIMIT $2", after, limit
    )


async def get_price_version(unit: UnitOfWork, version_id: PriceVersionId) -> PriceVersionView:
    """One version that the scope of `unit` may see.

    Raises:
        ProblemError: 404 `billing.price_book.not_found`.
    """
    row = await unit.fetchrow("SELECT * FROM price_version WHERE id = $1", version_id)
    if row is None:
        raise ProblemError(ErrorCode.PRICE_BOOK_NOT_FOUND, f"There is no price version {version_id}.")
    return price_version_view(row)
