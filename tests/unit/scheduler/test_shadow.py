"""Shadow prices: what the program's duals say is scarce, and what they are part of."""

import pytest

from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix, Price
from millpond_scheduler.domain.nodes import NodeSize
from millpond_scheduler.domain.scarcity import Scarcity, Setting, find_prices
from millpond_scheduler.domain.shadow import find_shadow_prices

pytestmark = pytest.mark.unit

LEAN, RICH, BARE = NodeSize("g2", 8, 32_000, 1), NodeSize("t4", 2, 64_000, 1), NodeSize(None, 0, 64_000, 1)
COUNTS = {LEAN: 10, RICH: 10, BARE: 10}
BOTH = ("g2", "t4")
LIGHT, HEAVY = DemandClass(2_000, 1, 1_000, BOTH), DemandClass(16_000, 1, 1_000, BOTH)


def mix(*classes: tuple[DemandClass, int]) -> DemandMix:
    return DemandMix(classes)


def test_shadow_prices_when_tasks_of_much_and_little_cpu_come_then_each_is_cheapest_where_it_belongs() -> None:
    prices = find_shadow_prices(COUNTS, mix((LIGHT, 70), (HEAVY, 30)))

    def cost(wanted: DemandClass, size: NodeSize) -> float:
        price = prices.get(size, Price())
        return price.core * wanted.cpu_milli / 1000 + price.device * wanted.count

    assert cost(LIGHT, LEAN) < cost(LIGHT, RICH)
    assert cost(HEAVY, LEAN) > cost(HEAVY, RICH)
    assert BARE not in prices


def test_shadow_prices_when_tasks_insist_on_a_flavor_then_its_devices_are_worth_most() -> None:
    insisting = DemandClass(2_000, 1, 1_000, ("t4",))
    prices = find_shadow_prices({LEAN: 10, RICH: 10}, mix((LIGHT, 60), (insisting, 40)))
    assert prices[RICH].device > prices[LEAN].device


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ({}, LIGHT),
        ({BARE: 5}, LIGHT),
        ({LEAN: 0}, LIGHT),
        (COUNTS, DemandClass(1_000, 16, 1_000, BOTH)),
        (COUNTS, DemandClass(128_000, 1, 1_000, BOTH)),
        (COUNTS, DemandClass(1_000, 1, 1_000, ("h100",))),
    ],
)
def test_shadow_prices_when_nothing_can_be_packed_then_there_are_none(
    counts: dict[NodeSize, int], wanted: DemandClass
) -> None:
    assert find_shadow_prices(counts, mix((wanted, 1))) == {}
    assert find_shadow_prices(counts, DemandMix()) == {}


def test_shadow_prices_when_tasks_need_no_cpu_then_no_core_is_worth_anything() -> None:
    prices = find_shadow_prices(COUNTS, mix((DemandClass(0, 1, 500, BOTH), 1)))
    assert all(price.core == 0 for price in prices.values())


def test_shadow_prices_when_the_sizes_come_in_another_order_then_they_are_the_same() -> None:
    wanted = mix((LIGHT, 70), (HEAVY, 30), (DemandClass(4_000, 2, 1_000, BOTH), 5))
    assert find_shadow_prices(dict(reversed(COUNTS.items())), wanted) == find_shadow_prices(COUNTS, wanted)


def test_prices_when_part_of_the_shadow_prices_is_wanted_then_it_is_added() -> None:
    wanted = mix((LIGHT, 70), (HEAVY, 30))
    shadow = find_shadow_prices(COUNTS, wanted)
    found = find_prices(COUNTS, wanted, Scarcity(shadow_permille=500))
    expected = {size: Price(price.core // 2, price.device // 2) for size, price in shadow.items()}
    assert found == {size: price for size, price in expected.items() if price != Price()}
    both = find_prices(COUNTS, wanted, Scarcity(core=100, shadow_permille=500))
    assert both[LEAN].core == found[LEAN].core + 100
    assert Setting(40, Scarcity(shadow_permille=50)).name == "quantum 40, core 0, device 0, shadow 50"
