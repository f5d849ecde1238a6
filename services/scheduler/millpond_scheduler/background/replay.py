"""A process of its own that replays a pool's jobs on its nodes: JSON in, JSON out; nothing else is read or written.

In: `pool`, `nodes` (views as JSON texts) and `requests` (pairs of an asked group as a JSON text, and how many came).
Out: `scores`, best first, `gain_points`, `jobs`, `nodes`; or `error`. What matters to packing is replayed: CPU, memory
and devices of the nodes that are all of one flavor, without divided ones, and of each request the flavors that could
take it. Tasks without devices come as well where no node without devices is there for them.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.packings import PackingScore, PackingSetting
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.ids import TenantId
from millpond_scheduler.domain.mixes import find_class
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scarcity import Setting
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.simulation.policies import POLICIES
from millpond_scheduler.simulation.traces import TraceJob, TraceNode
from millpond_scheduler.simulation.tuning import tune
from millpond_scheduler.usecases.records import node_record, pool_rules, request_class

MOST_NODES, MOST_JOBS = 400, 2_000
"""Of a larger pool every so many nodes are replayed, and of more tasks the same share of each request."""


def propose(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the replays of these nodes and requests say, or why there is nothing to replay."""
    pool = PoolView.model_validate(given["pool"])
    views = [node for node in map(NodeView.model_validate_json, given["nodes"]) if node.pool_id == pool.pool_id]
    nodes = [node for node in map(_trace_node, views) if node is not None]
    if not nodes:
        return {"error": "The pool has no nodes with devices of one flavor."}
    nodes = nodes[:: -(-len(nodes) // MOST_NODES)]
    snapshot = Snapshot({pool.pool_id: pool_rules(pool)})
    for view in views:
        snapshot.upsert_node(node_record(view, silent=False))
    counts: Counter[RequestClass] = Counter()
    for asked, tasks in given["requests"]:
        counts[request_class(TenantId(int=0), pool.pool_id, json.loads(asked))] += tasks
    with_alone = all(view.devices for view in views)
    jobs = _trace_jobs(snapshot, counts, {node.model for node in nodes}, with_alone=with_alone)
    if not any(job.devices for job in jobs):
        return {"error": "No task with devices that the pool's nodes could take has come to it lately."}
    policy = POLICIES["default"]
    tuned = tune(nodes, jobs, policy, processes=1)
    allocated = {setting: tuned.scores[setting.name] for setting in tuned.settings}
    ranked = sorted(allocated, key=lambda setting: (setting != tuned.setting, -allocated[setting]))
    scores = [PackingScore(setting=_told(each), allocated_percent=allocated[each]) for each in ranked]
    return {
        "scores": [score.model_dump(mode="json") for score in scores],
        "gain_points": round(allocated[tuned.setting] - allocated[policy.setting], 4),
        "jobs": len(jobs),
        "nodes": len(nodes),
    }


def _trace_node(view: NodeView) -> TraceNode | None:
    """A node with the devices that are given out whole or in shares; None where these are not of one flavor."""
    flavors = [device.flavor for device in view.devices if device.partition_mode is None]
    if len(set(flavors)) != 1:
        return None
    return TraceNode(str(view.node_id), view.cpu_milli, view.memory_mib, len(flavors), flavors[0])


def _trace_jobs(
    snapshot: Snapshot, counts: Mapping[RequestClass, int], flavors: set[str], *, with_alone: bool
) -> list[TraceJob]:
    found: list[tuple[TraceJob, int]] = []
    for number, (request, count) in enumerate(counts.items()):
        wanted = find_class(snapshot, request)
        models = flavors.intersection(() if wanted is None else wanted.flavors)
        if wanted is not None and models:
            job = TraceJob(str(number), request.cpu_milli, request.memory_mib, wanted.count, wanted.milli)
            found.append((job if models == flavors else _only_on(job, models), count))
        elif request.devices is None and with_alone:
            found.append((TraceJob(str(number), request.cpu_milli, request.memory_mib, 0, 0), count))
    most = max(sum(count for _, count in found) / MOST_JOBS, 1)
    return [job for job, count in found for _ in range(max(round(count / most), 1))]


def _only_on(job: TraceJob, models: set[str]) -> TraceJob:
    return TraceJob(job.name, job.cpu_milli, job.memory_mib, job.devices, job.milli, frozenset(models))


def _told(setting: Setting) -> PackingSetting:
    scarcity = setting.scarcity
    return PackingSetting(
        quantum_milli=setting.quantum_milli,
        core_price=scarcity.core,
        device_price=scarcity.device,
        shadow_permille=scarcity.shadow_permille,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(propose(json.load(sys.stdin))))
