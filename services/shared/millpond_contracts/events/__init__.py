"""Events by publisher: one frozen class per event and version, named in the past tense.

`EVENT_TYPES` maps a type string such as `scheduler.allocation_bound.v1` to its class.
"""

from millpond_contracts.events import autoscaler, billing, quota, registry, scheduler
from millpond_contracts.events.envelope import Envelope, Event

_MODULES = (registry, quota, scheduler, billing, autoscaler)

EVENT_TYPES: dict[str, type[Event]] = {
    event.type: event
    for module in _MODULES
    for event in vars(module).values()
    if isinstance(event, type) and issubclass(event, Event) and event.type
}

PUBLISHERS: tuple[str, ...] = ("registry", "quota", "scheduler", "billing", "autoscaler")

__all__ = ["EVENT_TYPES", "PUBLISHERS", "Envelope", "Event"]
