"""Price books: versions that never change, resolution by flavor and scope, unit prices from hourly ones."""

from dataclasses import replace
from decimal import Decimal, Inexact, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_billing.domain.prices import (
    EXAMPLE_PER_HOUR,
    PriceBook,
    PriceLine,
    PriceMissing,
    PriceRefused,
    example_version,
)
from millpond_contracts.ids import PriceVersionId, TenantId
from millpond_contracts.prices import (
    EXACT,
    SMALLEST_PER_UNIT,
    Resource,
    Sku,
    Term,
    exact_amount,
    exact_sum,
    round_half_up,
    unit_price_of,
)
from tests.factories.billing import GPU, book, named, price_version

pytestmark = pytest.mark.unit

H100 = Sku.parse(GPU)
ANY = "device/*/on_demand"
T1 = named(TenantId, "t1")


def unit_price(prices: PriceBook, sku: Sku = H100, tenant: TenantId | None = T1, instant: int = 10) -> Decimal:
    return prices.price_at(sku, tenant, instant).unit_price


def test_publish_when_a_version_follows_then_the_open_one_ends_where_it_begins() -> None:
    prices = book(price_version("v1", {ANY: "1"}, 0), price_version("v2", {ANY: "2"}, 100))

    assert [version.valid_to for version in prices.versions] == [100, None]
    assert [unit_price(prices, instant=instant) for instant in (99, 100)] == [Decimal(1), Decimal(2)]


def test_publish_when_it_starts_in_the_past_then_refuses() -> None:
    with pytest.raises(PriceRefused, match="past"):
        PriceBook(()).publish(price_version("v1", {ANY: "1"}, 9), now=10)


def test_publish_when_it_overlaps_a_planned_version_then_refuses() -> None:
    planned = book(price_version("v2", {ANY: "2"}, 100))

    with pytest.raises(PriceRefused, match="already prices"):
        planned.publish(price_version("v1", {ANY: "1"}, 50), now=0)
    with pytest.raises(PriceRefused, match="already prices"):
        planned.publish(price_version("v3", {ANY: "1"}, 100), now=0)
    assert len(planned.publish(price_version("v1", {ANY: "1"}, 50, valid_to=100), now=0).versions) == 2


@pytest.mark.parametrize(
    "version",
    [
        price_version("v", {}, 0),
        price_version("v", {ANY: "1"}, 0, valid_to=0),
        price_version("v", {ANY: "1"}, 0, minimum_seconds=-1),
        replace(price_version("v", {ANY: "1"}, 0), lines=price_version("v", {ANY: "1"}).lines * 2),
    ],
)
def test_publish_when_malformed_then_refuses(version: object) -> None:
    with pytest.raises(PriceRefused):
        PriceBook(()).publish(version, now=0)  # type: ignore[arg-type]


def test_publish_when_the_currency_differs_then_refuses() -> None:
    with pytest.raises(PriceRefused, match="currency"):
        book(price_version("v1", {ANY: "1"}, 0)).publish(price_version("v2", {ANY: "1"}, 5, currency="EUR"), now=0)


def test_price_when_several_match_then_flavor_decides_before_scope() -> None:
    listed = price_version("list", {GPU: "1", ANY: "2"}, 0)
    tenant_any = price_version("any", {ANY: "3"}, 0, tenant="t1")
    tenant_flavor = price_version("flavor", {GPU: "4", ANY: "3"}, 0, tenant="t1")
    other = Sku(Resource.DEVICE, "mi300")

    assert unit_price(book(listed, tenant_any)) == 1
    assert unit_price(book(listed, tenant_any), other) == 3
    assert unit_price(book(listed, tenant_flavor)) == 4
    assert unit_price(book(listed, tenant_flavor), tenant=None) == 1
    assert unit_price(book(listed, tenant_any), other, named(TenantId, "t2")) == 2


def test_price_when_the_term_differs_then_is_missing_and_never_zero() -> None:
    prices = book(price_version("list", {ANY: "2"}, 5))

    with pytest.raises(PriceMissing, match="reserved"):
        unit_price(prices, Sku(Resource.DEVICE, "h100", Term.RESERVED))
    with pytest.raises(PriceMissing):
        unit_price(prices, instant=4)


def test_change_points_when_another_tenant_changes_then_are_untouched() -> None:
    prices = book(
        price_version("list", {ANY: "2"}, 0),
        price_version("t1", {ANY: "2"}, 10, tenant="t1", valid_to=20),
        price_version("t2", {ANY: "2"}, 30, tenant="t2"),
    )

    assert prices.change_points(T1) == (0, 10, 20)


@given(st.sampled_from(Resource), st.text("abcdefgh123-", min_size=1, max_size=20))
def test_example_book_when_a_flavor_is_unknown_then_it_has_a_price(resource: Resource, flavor: str) -> None:
    prices = PriceBook(()).publish(example_version(named(PriceVersionId, "example"), 0), now=0)

    price = prices.price_at(Sku(resource, flavor), T1, 0)

    assert (price.currency, price.minimum_seconds) == ("CNY", 60)
    assert price.amount(SMALLEST_PER_UNIT[resource], 3_600_000_000) == EXAMPLE_PER_HOUR[Sku(resource)]
    assert prices.versions[0].example


@given(st.sampled_from(Resource), st.decimals(0, 1_000_000_000, places=9))
def test_unit_price_when_made_from_an_hour_then_is_the_nearest_of_18_decimals(
    resource: Resource, per_hour: Decimal
) -> None:
    exact = Fraction(per_hour) / (SMALLEST_PER_UNIT[resource] * 3600)

    assert abs(Fraction(unit_price_of(resource, per_hour)) - exact) <= Fraction(1, 2 * 10**18)


def test_unit_price_when_ten_an_hour_over_100_000_hours_then_errs_below_a_millionth() -> None:
    line = PriceLine.of(H100, Decimal("10.00"))

    cost = exact_amount(line.unit_price, 1000, 100_000 * 3_600_000_000)

    assert cost != 1_000_000
    assert abs(cost - 1_000_000) < Decimal("0.000001")
    assert round_half_up(cost, 2) == Decimal("1000000.00")


@pytest.mark.parametrize("per_hour", ["-0.01", "1000000000.1", "0.0000000001", "NaN", "Infinity", "9e30"])
def test_unit_price_when_out_of_bounds_then_refuses(per_hour: str) -> None:
    with pytest.raises(ValueError, match="price per hour"):
        unit_price_of(Resource.CPU, Decimal(per_hour))


@pytest.mark.parametrize("text", ["", "device/h100", "device//on_demand", "disk/x/on_demand", "cpu/*/spot", "a/b/c/d"])
def test_sku_when_malformed_then_refuses(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Sku.parse(text)


def test_sku_when_written_then_reads_back() -> None:
    assert str(Sku.parse(GPU)) == GPU
    assert str(Sku(Resource.CPU)) == "cpu/*/on_demand"


def test_amounts_when_the_thread_has_28_digits_then_lose_none() -> None:
    with localcontext(prec=28):
        large = exact_amount(Decimal("277.777777777777777778"), 1_000_000_000, 315_360_000_000_001)
        total = exact_sum([large, Decimal("1E-24")])

    assert Fraction(total) == Fraction("277.777777777777777778") * 10**9 * 315_360_000_000_001 / 10**6 + Fraction(
        1, 10**24
    )


def test_exact_context_when_a_digit_would_be_lost_then_raises() -> None:
    with pytest.raises(Inexact):
        EXACT.divide(Decimal(1), Decimal(3))


@pytest.mark.parametrize(
    ("amount", "rounded"), [("0.125", "0.13"), ("-0.125", "-0.13"), ("0.1249999999999999999999999999999999", "0.12")]
)
def test_rounding_when_half_then_goes_away_from_zero(amount: str, rounded: str) -> None:
    assert round_half_up(Decimal(amount), 2) == Decimal(rounded)
