"""How many requests of a tenant a process takes: a burst at once, then so many a second, each tenant for itself."""

import pytest

from millpond_contracts.ids import TenantId
from millpond_kernel.rates import REMEMBERED_TENANTS, TenantRates

pytestmark = pytest.mark.unit


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def taken(rates: TenantRates, tenant: TenantId, asked: int) -> int:
    return sum(rates.take(tenant) == 0 for _ in range(asked))


def test_bucket_when_asked_at_once_then_the_burst_and_no_more() -> None:
    rates = TenantRates("quota", per_second=10, burst=5, clock=Clock())
    tenant = TenantId.new()
    assert taken(rates, tenant, 20) == 5
    assert rates.take(tenant) == pytest.approx(0.1)


def test_bucket_when_asked_again_and_again_then_so_many_a_second() -> None:
    clock, tenant = Clock(), TenantId.new()
    rates = TenantRates("quota", per_second=10, burst=5, clock=clock)
    passed = 0
    for _ in range(1000):
        passed += taken(rates, tenant, 3)
        clock.now += 0.01
    assert passed in range(104, 107)  # 5 at once, and 10 a second for 10 seconds


def test_bucket_when_left_alone_then_full_again_and_not_fuller() -> None:
    clock, tenant = Clock(), TenantId.new()
    rates = TenantRates("quota", per_second=10, burst=5, clock=clock)
    taken(rates, tenant, 5)
    clock.now += 0.21
    assert taken(rates, tenant, 5) == 2
    clock.now += 3600
    assert taken(rates, tenant, 20) == 5


def test_bucket_when_refused_then_the_wait_it_named_is_enough_and_refusals_cost_nothing() -> None:
    clock, tenant = Clock(), TenantId.new()
    rates = TenantRates("quota", per_second=0.1, burst=1, clock=clock)
    assert rates.take(tenant) == 0
    waits = [rates.take(tenant) for _ in range(50)]
    assert waits == [pytest.approx(10)] * 50
    clock.now += waits[-1]
    assert rates.take(tenant) == 0


def test_buckets_when_one_is_empty_then_the_others_are_not() -> None:
    rates = TenantRates("quota", per_second=1, burst=2, clock=Clock())
    one, other = TenantId.new(), TenantId.new()
    assert (taken(rates, one, 10), taken(rates, other, 10)) == (2, 2)


def test_buckets_when_there_were_many_tenants_then_only_those_that_are_not_full_are_kept() -> None:
    clock, busy = Clock(), TenantId.new()
    rates = TenantRates("quota", per_second=1, burst=2, clock=clock)
    for _ in range(REMEMBERED_TENANTS - 1):
        rates.take(TenantId.new())
    clock.now += 1.5
    taken(rates, busy, 2)
    rates.take(TenantId.new())
    assert rates.remembered == 2
    assert rates.take(busy) > 0
