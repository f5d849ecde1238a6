"""How large a pool may grow: what an explanation says when waiting for more nodes is in vain."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from millpond_contracts.ids import PoolId
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class GrowthLimit:
    """A scaling policy in force: the pool gets at most `max_nodes` nodes with the flavor."""

    policy: str
    pool: PoolId
    flavor: str
    max_nodes: int


@dataclass(frozen=True, slots=True)
class LargestSize:
    """A limit that is reached, with the nodes that are there."""

    limit: GrowthLimit
    nodes: int


def find_reached(snapshot: Snapshot, candidates: Candidates, limits: Iterable[GrowthLimit]) -> list[LargestSize]:
    """The limits of the request's pool that are reached, of flavors that could take it."""
    request, columns, reached = candidates.request, snapshot.columns, []
    if request.devices is None:
        return []
    here = columns.pool[: columns.rows] == snapshot.pools.find(request.pool)
    for limit in limits:
        if limit.pool != request.pool or limit.flavor not in candidates.flavors:
            continue
        with_flavor = columns.device_flavor[: columns.rows] == snapshot.flavors.find(limit.flavor)
        nodes = int(np.count_nonzero(here & with_flavor.any(axis=1)))
        if nodes >= limit.max_nodes:
            reached.append(LargestSize(limit, nodes))
    return reached
