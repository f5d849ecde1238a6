"""Publishing prices: new versions, never changes; the example list of a new installation."""

from datetime import datetime, timedelta
from typing import Any

from millpond_billing.domain.prices import PriceLine, PriceOverlap, PriceRefused, PriceVersion, example_version
from millpond_billing.domain.timeline import instant_of
from millpond_billing.store import prices as rows
from millpond_billing.store.locks import lock_for_publishing
from millpond_billing.store.tenants import get_tenant
from millpond_contracts.bodies.bills import PriceVersionSpec, PriceVersionView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.billing import PricePublished
from millpond_contracts.ids import PriceVersionId
from millpond_contracts.prices import Resource, Sku
from millpond_kernel.audit import audit
from millpond_kernel.pagination import snapshot_position
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork

# "Now" is a moment ahead, so that clocks of two databases may differ a little.
SOON = timedelta(seconds=1)
FURTHEST = timedelta(days=3660)
# A public list prices these, so that nothing anybody uses is ever without a price.
_NEEDED = tuple(Sku(resource) for resource in Resource)


async def publish_prices(unit: UnitOfWork, caller: Principal, spec: PriceVersionSpec) -> PriceVersionView:
    """A new version; the open one of the same scope ends where it begins.

    Raises:
        ProblemError: in the past, overlapping, another currency, a price out of bounds, or none for what is needed.
    """
    await lock_for_publishing(unit)
    # Read under the lock: everything rated so far happened before this instant.
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if spec.tenant_id is not None:
        await get_tenant(unit, spec.tenant_id)
    await _publish_example(unit)
    book = await rows.load_price_book(unit)
    version = _version(spec, now)
    _check_complete(version)
    try:
        after = book.publish(version, instant_of(now))
    except PriceOverlap as error:
        raise ProblemError(ErrorCode.PRICE_OVERLAP, f"Not published: {error}.") from error
    except PriceRefused as error:
        raise _refused(str(error)) from error
    ends = {one.version_id: one.valid_to for one in after.versions}
    for old in book.versions:
        end = ends[old.version_id]
        if end is not None and end != old.valid_to:
            unit.emit(PricePublished(price=await rows.end_price_version(unit, old.version_id, end)))
    view = await rows.insert_price_version(unit, version, spec.note)
    unit.emit(PricePublished(price=view))
    audit(unit, caller, "price.publish", str(view.price_version_id), after=view)
    return view


def _version(spec: PriceVersionSpec, now: datetime) -> PriceVersion:
    starts_at = now + SOON if spec.valid_from is None else spec.valid_from
    if starts_at < now:
        raise ProblemError(
            ErrorCode.PRICE_IN_THE_PAST, f"Prices never start in the past; it is {now.isoformat()}, not published."
        )
    if starts_at - now > FURTHEST:
        raise _refused(f"valid_from may lie at most {FURTHEST.days} days ahead")
    try:
        lines = tuple(PriceLine.of(Sku.parse(line.sku), line.per_hour) for line in spec.lines)
    except ValueError as error:
        raise _refused(str(error)) from error
    return PriceVersion(
        version_id=PriceVersionId.new(),
        tenant_id=spec.tenant_id,
        currency=spec.currency,
        valid_from=instant_of(starts_at),
        valid_to=None,
        minimum_seconds=spec.minimum_seconds,
        lines=lines,
    )


def _check_complete(version: PriceVersion) -> None:
    missing = [str(sku) for sku in _NEEDED if version.find_line(sku) is None]
    if version.tenant_id is None and missing:
        raise _refused(f"a public list must also price {', '.join(missing)}, or its use could not be billed")


def _refused(reason: str) -> ProblemError:
    return ProblemError(ErrorCode.BODY_INVALID, f"Not published: {reason}.")


async def ensure_example_prices(unit: UnitOfWork) -> None:
    """Publishes the example list when no price exists at all.

    It holds from 1970, so that nothing held by an installation without prices of its own is ever unpriced.
    """
    await lock_for_publishing(unit)
    await _publish_example(unit)


async def _publish_example(unit: UnitOfWork) -> None:
    if (await rows.load_price_book(unit)).versions:
        return
    view = await rows.insert_price_version(
        unit, example_version(PriceVersionId.new(), 0), "example prices; publish your own with `millpond price set`"
    )
    unit.emit(PricePublished(price=view))


async def list_price_items(unit: UnitOfWork, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Every version, in pages by id, for services that are new or too far behind."""
    found = await rows.list_price_versions(unit, snapshot_position(after), limit)
    views = [rows.price_version_view(row) for row in found]
    following = views[-1].price_version_id.hex if len(views) == limit else None
    return [view.model_dump(mode="json") for view in views], following
