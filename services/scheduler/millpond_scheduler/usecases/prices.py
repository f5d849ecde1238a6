"""What billing tells of prices: enough to name the version in force when an allocation is bound."""

from millpond_contracts.bodies.bills import PriceVersionView
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import views
from millpond_scheduler.store.changes import ChangeKind, note_changes


async def take_price(unit: UnitOfWork, price: PriceVersionView) -> None:
    """Takes a price version."""
    if await views.write_price(unit, price):
        await note_changes(unit, ChangeKind.PRICE, [price.price_version_id])
