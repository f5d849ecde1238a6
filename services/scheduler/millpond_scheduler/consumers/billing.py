"""Follows billing: published prices, so that an allocation can name the version that was in force at its bind."""

from collections.abc import Callable, Sequence
from typing import Any

from millpond_contracts.bodies.bills import PriceVersionView
from millpond_contracts.events import Envelope
from millpond_contracts.events.billing import PricePublished
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.usecases.prices import take_price


def billing_consumer(after_batch: Callable[[], None]) -> Consumer:
    """The consumer of billing's events; `after_batch` wakes the leader of this process."""
    return Consumer(
        name="prices",
        publisher="billing",
        handlers={PricePublished: _on_price},
        snapshots={"prices": _load_prices},
        after_batch=after_batch,
        clear=_clear,
    )


async def _clear(unit: UnitOfWork) -> None:
    await unit.execute("DELETE FROM price_view")


async def _on_price(unit: UnitOfWork, envelope: Envelope, event: PricePublished) -> None:
    await take_price(unit, event.price)


async def _load_prices(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_price(unit, PriceVersionView.model_validate(item))
