"""What an offer says that a job will cost is what is charged when the job uses exactly that."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_billing.domain.prices import PriceBook, PriceLine, PriceVersion
from millpond_billing.domain.rating import charges_of, rate_timeline
from millpond_contracts.ids import PriceVersionId, TenantId
from millpond_contracts.prices import PublishedPrices, Sku, exact_sum, quote
from tests.factories.billing import CPU, GPU, HOUR, MEMORY, SECOND, START, book, named, timeline

pytestmark = pytest.mark.unit

TENANT = named(TenantId, "t1")
ANY_DEVICE = "device/*/on_demand"
PUBLIC = {CPU: "0.18", MEMORY: "0.018", ANY_DEVICE: "9.00"}
HOLDS = {CPU: 8000, MEMORY: 65_536, GPU: 2000}


def version(
    name: str,
    per_hour: dict[str, str],
    valid_from: int = 0,
    *,
    tenant: str | None = None,
    minimum_seconds: int = 60,
) -> PriceVersion:
    return PriceVersion(
        version_id=named(PriceVersionId, name),
        tenant_id=None if tenant is None else named(TenantId, tenant),
        currency="CNY",
        valid_from=valid_from,
        valid_to=None,
        minimum_seconds=minimum_seconds,
        lines=tuple(PriceLine.of(Sku.parse(sku), Decimal(price)) for sku, price in per_hour.items()),
    )


def published(prices: PriceBook) -> list[PublishedPrices]:
    """The versions of billing's book as they are published to others."""
    return [
        PublishedPrices(
            one.version_id,
            one.tenant_id,
            one.currency,
            one.valid_from,
            one.valid_to,
            one.minimum_seconds,
            {line.sku: line.per_hour for line in one.lines},
        )
        for one in prices.versions
    ]


def charged(prices: PriceBook, seconds: int, start: int = START) -> Decimal:
    """What billing charges for an allocation that was active for exactly so long."""
    life = timeline(bound=start, active=start, released=start + seconds * SECOND, amounts=HOLDS)
    rated = rate_timeline(life, prices, start + 1000 * HOUR)
    return exact_sum(charge.amount for one in rated for charge in charges_of(one))


def quoted(prices: PriceBook, seconds: int | None, start: int = START) -> Decimal | None:
    amounts = {Sku.parse(sku): amount for sku, amount in HOLDS.items()}
    found = quote(published(prices), TENANT, amounts, start, seconds)
    return None if found is None else found.total


def test_quote_when_the_list_prices_everything_then_an_hour_is_the_sum_of_its_lines() -> None:
    amounts = {Sku.parse(sku): amount for sku, amount in HOLDS.items()}
    found = quote(published(book(version("list", PUBLIC))), TENANT, amounts, START, 3600)
    assert found is not None
    # 8 cores at 0.18, 64 GiB at 0.018, 2 devices at 9
    assert [line.per_hour for line in found.lines] == [Decimal("1.44"), Decimal("18"), Decimal("1.152")]
    assert (found.per_hour, found.total, found.holds_until) == (Decimal("20.592"), Decimal("20.592"), None)
    assert {line.unit_per_hour for line in found.lines} == {Decimal("0.18"), Decimal("9.00"), Decimal("0.018")}


def test_quote_when_the_tenant_has_a_price_of_its_own_then_it_holds_for_what_it_names() -> None:
    own = version("own", {GPU: "4.50"}, tenant="t1")
    found = quote(published(book(version("list", PUBLIC), own)), TENANT, {Sku.parse(GPU): 1000}, START)
    assert found is not None
    assert (found.per_hour, found.total) == (Decimal("4.5"), None)
    assert found.lines[0].version == own.version_id


def test_quote_when_something_has_no_price_then_there_is_none() -> None:
    assert quoted(book(version("list", {CPU: "0.18", MEMORY: "0.018"})), 60) is None
    assert quoted(PriceBook(()), None) is None


def test_quote_when_a_price_is_published_for_later_then_it_says_how_long_it_holds() -> None:
    prices = book(version("list", PUBLIC), version("later", PUBLIC, START + 90 * SECOND))
    found = quote(published(prices), TENANT, {Sku.parse(CPU): 1000}, START)
    assert found is not None
    assert found.holds_until == START + 90 * SECOND


@given(
    seconds=st.integers(1, 7200),
    change_us=st.integers(-HOUR, 3 * HOUR),
    own_us=st.integers(-HOUR, 3 * HOUR),
    minimum=st.integers(0, 300),
)
def test_quote_when_prices_change_while_it_runs_then_it_is_what_billing_charges_to_the_last_digit(
    seconds: int, change_us: int, own_us: int, minimum: int
) -> None:
    prices = book(
        version("list", PUBLIC, minimum_seconds=minimum),
        version("later", {**PUBLIC, ANY_DEVICE: "7.13"}, START + change_us, minimum_seconds=minimum + 7),
        version("own", {GPU: "5.01"}, START + own_us, tenant="t1", minimum_seconds=90),
        version("others", {GPU: "1"}, tenant="t2"),
    )
    assert quoted(prices, seconds) == charged(prices, seconds)
