"""Reading a machine's clock by its exchanges: a request that waited does not move the instants of its reports."""

from datetime import UTC, datetime, timedelta

import pytest

from millpond_scheduler.store.node_leases import Exchange

pytestmark = pytest.mark.unit

START = datetime(2030, 1, 1, tzinfo=UTC)


def exchange(sent_seconds: float, delay_seconds: float) -> Exchange:
    """An exchange sent so long after the machine's start, that began at START, and taken after a delay."""
    at = START + timedelta(seconds=sent_seconds + delay_seconds)
    return Exchange("boot", at, round(sent_seconds * 1000))


def read_after(*exchanges: tuple[float, float]) -> float:
    """How late the machine's instants are read after these exchanges, in seconds."""
    known = exchange(*exchanges[0])
    for sent, delay in exchanges[1:]:
        known = exchange(sent, delay).after(known)
    return (known.server_time(0) - START).total_seconds()


def test_exchange_when_it_waited_then_the_former_reading_holds() -> None:
    assert read_after((10, 0.002), (20, 1.1), (21, 5)) == pytest.approx(0.002 + 11 * 0.0005, abs=1e-5)


def test_exchange_when_it_came_quicker_then_its_reading_holds() -> None:
    assert read_after((10, 1.1), (20, 0.003)) == pytest.approx(0.003)


def test_exchange_when_clocks_drift_apart_then_the_reading_follows() -> None:
    steady = [(float(second), second * 0.0001) for second in range(0, 10_000, 10)]
    assert read_after(*steady) == pytest.approx(steady[-1][1], abs=1e-3)


@pytest.mark.parametrize("step", [-3600.0, 300.0])
def test_exchange_when_the_servers_clock_was_set_then_the_new_time_holds(step: float) -> None:
    assert read_after((10, 0.002), (20, step)) == pytest.approx(step)


def test_exchange_when_requests_overtake_one_another_then_none_is_read_later_than_it_came() -> None:
    late, early = exchange(10, 3), exchange(12, 0.5)
    assert late.after(early).at <= late.at
    assert (late.after(early).server_time(0) - START).total_seconds() == pytest.approx(0.501, abs=1e-3)
