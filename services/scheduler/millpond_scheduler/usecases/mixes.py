"""What usually comes to each pool, learned from the newest jobs, and the setting that an operator accepted for it.

Leader and plans learn both from the same rows.
"""

import json
from collections import Counter

from millpond_contracts.ids import PoolId, TenantId
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.mixes import CHANGE_PERMILLE, find_mixes
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scarcity import Setting
from millpond_scheduler.store import jobs, packings
from millpond_scheduler.usecases.records import request_class
from millpond_scheduler.usecases.shard import Shard

# Waiting, running and ended alike: what came is the best guess of what will come.
RECENT_JOBS = 2_000
MOST_REQUESTS = 1_000
MIX_SECONDS = 60.0


async def refresh_mixes(unit: UnitOfWork, shard: Shard, change_permille: int = CHANGE_PERMILLE) -> None:
    """Takes what came lately where so much of it changed; a pool to which nothing came keeps what was known of it."""
    counts: Counter[RequestClass] = Counter()
    for row in await jobs.count_recent_requests(unit, RECENT_JOBS, MOST_REQUESTS):
        request = request_class(TenantId(int=0), PoolId.of(row["pool_id"]), json.loads(row["asked"]))
        counts[request] += row["tasks"]
    accepted = await packings.list_settings(unit)
    mixes = find_mixes(shard.snapshot, counts)
    for pool in shard.pools:
        known = shard.snapshot.packing_of(pool)
        mix = mixes.get(pool, known.mix)
        if mix.measure_change(known.mix) < change_permille:
            mix = known.mix
        packing = accepted.get(pool, Setting()).pack(shard.snapshot.count_sizes(pool), mix)
        if packing != known:
            shard.snapshot.set_packing(pool, packing)
