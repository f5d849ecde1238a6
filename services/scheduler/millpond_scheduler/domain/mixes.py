"""What usually comes to a pool, from the requests that came to it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from millpond_contracts.ids import PoolId, TenantId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.fits import ShapeFits
from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix
from millpond_scheduler.domain.policy import SHAPE_FILTERS
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot

# Less change of a mix is not worth scoring every node anew.
CHANGE_PERMILLE = 50

_ANYBODY = TenantId(int=0)


def find_mixes(snapshot: Snapshot, counts: Mapping[RequestClass, int]) -> dict[PoolId, DemandMix]:
    """The mix of each pool to which tasks with devices came; the same requests and hardware give the same mixes.

    Args:
        counts: how many tasks came with each request.
    """
    alike: Counter[RequestClass] = Counter()
    for request, count in counts.items():
        # Neither whose it is nor its memory or labels say which devices it can use.
        alike[replace(request, tenant=_ANYBODY, memory_mib=0, labels=(), affinity=(), levels=frozenset())] += count
    found: dict[PoolId, Counter[DemandClass]] = {}
    cpu_alone: Counter[PoolId] = Counter()
    for request, count in alike.items():
        if request.devices is None:
            cpu_alone[request.pool] += request.cpu_milli * count
        wanted = find_class(snapshot, request)
        if wanted is not None:
            found.setdefault(request.pool, Counter())[wanted] += count
    return {pool: DemandMix.of(classes, cpu_alone[pool]) for pool, classes in found.items()}


def find_class(snapshot: Snapshot, request: RequestClass) -> DemandClass | None:
    """The class of a request; None without devices, or when no hardware of its pool could take it.

    Partitions are no class: what spoils them is looked up by themselves, on devices that nothing else can use.
    A slice by memory alone counts as the share that it is of the smallest device that it can use.
    """
    demand = request.devices
    if demand is None or demand.profile is not None:
        return None
    fits = ShapeFits(snapshot, request, SHAPE_FILTERS, DistanceRules())
    fits.extend()
    flavors = tuple(name for name in fits.flavor_names if snapshot.has_flavor(request.pool, name))
    if not flavors:
        return None
    milli = demand.milli
    if milli is None:
        smallest = min(fits.flavors[name] for name in flavors)
        share = (demand.memory_mib or 0) * WHOLE_DEVICE_MILLI // max(smallest, 1)
        milli = min(max(share, 1), WHOLE_DEVICE_MILLI)
    return DemandClass(request.cpu_milli, demand.count, milli, flavors)
