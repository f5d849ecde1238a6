"""Guarantees against the registered capacity of a pool, as the registry tells it."""

from datetime import UTC, datetime

import pytest

from millpond_contracts.bodies.pools import PoolCapacity
from millpond_contracts.bodies.tenants import Limit, Limits
from millpond_contracts.ids import PoolId
from millpond_quota.domain.guarantees import find_shortfalls

pytestmark = pytest.mark.unit


def limits(cpu: int, memory: int = 0, devices: int = 0) -> Limits:
    return Limits(
        cpu=Limit(guaranteed=cpu),
        memory=Limit(guaranteed=memory),
        devices={"h100": Limit(guaranteed=devices)} if devices else {},
    )


def capacity(cpu: int, memory: int) -> PoolCapacity:
    hosts = [
        {"resource": name, "total": total, "unschedulable": 0, "allocated": 0, "reserved": 0, "available": total}
        for name, total in (("cpu", cpu), ("memory", memory))
    ]
    fields = {
        "pool_id": PoolId.new(),
        "as_of": datetime.now(UTC),
        "nodes": {},
        "hosts": hosts,
        "devices": [],
        "generation": 1,
    }
    return PoolCapacity.model_validate(fields)


def test_find_shortfalls_when_sum_equals_capacity_then_none() -> None:
    assert find_shortfalls([limits(1000, 512), limits(900, 512)], capacity(1900, 1024)) == []


def test_find_shortfalls_when_one_milli_beyond_then_named() -> None:
    (found,) = find_shortfalls([limits(1000), limits(901)], capacity(1900, 1024))
    assert (found.resource, found.guaranteed, found.capacity) == ("cpu", 1901, 1900)


def test_find_shortfalls_when_flavor_is_absent_then_capacity_zero() -> None:
    (found,) = find_shortfalls([limits(0, devices=1000)], capacity(1900, 1024))
    assert (found.resource, found.flavor, found.capacity) == ("device", "h100", 0)
