"""Publishing prices: new versions, never changes; the example list of a new installation."""

from datetime import datetime, timedelta

from millpond_billing.domain.prices import PriceLine, PriceRefused, PriceVersion, example_version
from millpond_billing.domain.timeline import instant_of
from millpond_billing.store import prices as rows
from millpond_contracts.bodies.bills import PriceVersionSpec, PriceVersionView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.billing import PricePublished
from millpond_contracts.ids import PriceVersionId
from millpond_contracts.prices import Sku
from millpond_kernel.audit import audit
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork

# "Now" is a moment ahead: what was released before the publication committed is rated already.
SOON = timedelta(seconds=1)


async def publish_prices(
    unit: UnitOfWork, caller: Principal, spec: PriceVersionSpec, now: datetime
) -> PriceVersionView:
    """A new version; the open one of the same scope ends where it begins.

    Raises:
        ProblemError: in the past, overlapping, another currency, or a price out of bounds.
    """
    await rows.lock_price_book(unit)
    book = await rows.load_price_book(unit)
    try:
        version = _version(spec, now)
        after = book.publish(version, instant_of(now))
    except PriceRefused as error:
        code = ErrorCode.PRICE_IN_THE_PAST if "past" in str(error) else ErrorCode.PRICE_OVERLAP
        raise ProblemError(code, f"Not published: {error}.") from error
    except ValueError as error:
        raise ProblemError(ErrorCode.BODY_INVALID, f"Not published: {error}.") from error
    before = {one.version_id: one for one in book.versions}
    for one in after.versions:
        old = before.get(one.version_id)
        if old is not None and old.valid_to != one.valid_to and one.valid_to is not None:
            unit.emit(PricePublished(price=await rows.end_price_version(unit, one.version_id, one.valid_to)))
    view = await rows.insert_price_version(unit, version, spec.note)
    unit.emit(PricePublished(price=view))
    audit(unit, caller, "price.publish", str(view.price_version_id), after=view)
    return view


def _version(spec: PriceVersionSpec, now: datetime) -> PriceVersion:
    return PriceVersion(
        version_id=PriceVersionId.new(),
        tenant_id=spec.tenant_id,
        currency=spec.currency,
        valid_from=instant_of(now + SOON if spec.valid_from is None else spec.valid_from),
        valid_to=None,
        minimum_seconds=spec.minimum_seconds,
        lines=tuple(PriceLine.of(Sku.parse(line.sku), line.per_hour) for line in spec.lines),
    )


async def ensure_example_prices(unit: UnitOfWork) -> bool:
    """Publishes the example list when no price exists at all; True when it did.

    It holds from 1970, so that nothing held by an installation without prices of its own is ever unpriced.
    """
    await rows.lock_price_book(unit)
    if (await rows.load_price_book(unit)).versions:
        return False
    view = await rows.insert_price_version(
        unit, example_version(PriceVersionId.new(), 0), "example prices; publish your own with `millpond price set`"
    )
    unit.emit(PricePublished(price=view))
    return True
