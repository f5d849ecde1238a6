"""What a request may not be (scheduling cases 19 and 21)."""

from collections.abc import Callable

import pytest

from millpond_scheduler.domain.requests import DeviceDemand
from tests.unit.scheduler.world import request

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DeviceDemand(count=0), "device count"),
        (lambda: DeviceDemand(count=2**63 - 1), "device count"),
        (lambda: DeviceDemand(milli=0), "milli per device"),
        (lambda: DeviceDemand(milli=1001), "milli per device"),
        (lambda: DeviceDemand(milli=-1), "milli per device"),
        (lambda: DeviceDemand(memory_mib=0), "memory_mib per device"),
        (lambda: DeviceDemand(memory_mib=2**62), "memory_mib per device"),
        (lambda: DeviceDemand(milli=None), "needs milli or memory_mib"),
        (lambda: DeviceDemand(count=2, milli=500), "count 1"),
        (lambda: DeviceDemand(count=2, milli=None, memory_mib=1024), "count 1"),
        (lambda: request(cpu=-1), "cpu_milli"),
        (lambda: request(cpu=2**62), "cpu_milli"),
        (lambda: request(memory=-1), "memory_mib"),
        (lambda: request(memory=2**62), "memory_mib"),
    ],
)
def test_request_when_an_amount_is_out_of_bounds_then_is_refused_case_19(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_requests_when_equal_then_are_one_key() -> None:
    first, second = (request(count=1, minima=(("bf16_tflops", 300.0),)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != request(count=1, minima=(("bf16_tflops", 301.0),))
