"""The demo's pool without nodes: it grows under queued work, and shrinks again when that is done.

The times of its policy are seconds, so that a person can watch what takes a pool an hour.
"""

from dataclasses import dataclass

from millpond.client.client import Client
from millpond.demo.fleet import PER_NODE, submit_simulated, until
from millpond.demo.scenario import DemoFailed, DemoTenant, until_accepted
from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.jobs import JobState, JobView
from millpond_contracts.bodies.pools import PoolSpec
from millpond_contracts.bodies.scaling import (
    NodeOrderState,
    NodeTemplate,
    ScalingAction,
    ScalingDecisionView,
    ScalingPolicySpec,
    ScalingPolicyView,
    ScalingRules,
    SimulatedPlan,
)
from millpond_contracts.bodies.tenants import Limit, Limits, VirtualPoolSpec
from millpond_contracts.resources import DeviceKind

_TASKS, _TASK_SECONDS, _MOST_NODES = 30, 5, 6
_FLAVOR, _MODEL = "huawei-ascend-910b3", "Ascend 910B3"
_CPU_MILLI, _MEMORY_MIB = 96_000, 786_432


@dataclass(frozen=True, slots=True)
class Wave:
    """Work in a pool that had no nodes, and the policy that gets some."""

    policy: ScalingPolicyView
    job: JobView


def begin(operator: Client, lab: DemoTenant) -> Wave:
    """A pool that may grow to six nodes, and thirty tasks of one device that wait in it."""
    pool = operator.pools.create(PoolSpec(name="burst", priority=-1000))
    template = NodeTemplate(
        model=_MODEL,
        devices=PER_NODE,
        cpu_milli=_CPU_MILLI,
        memory_mib=_MEMORY_MIB,
        simulated=SimulatedPlan(boot_seconds=2),
    )
    rules = ScalingRules(
        max_nodes=_MOST_NODES,
        max_step_nodes=_MOST_NODES,
        cool_down_seconds=0,
        safety_window_seconds=2,
        min_node_life_seconds=0,
        registration_seconds=60,
        drain_seconds=30,
    )
    policy = until_accepted(
        lambda: operator.scaling_policies.create(
            ScalingPolicySpec(name="burst", pool_id=pool.pool_id, flavor=_FLAVOR, template=template, rules=rules)
        )
    )
    limits = Limits(
        cpu=Limit(borrow=_MOST_NODES * _CPU_MILLI),
        memory=Limit(borrow=_MOST_NODES * _MEMORY_MIB),
        devices={_FLAVOR: Limit(borrow=1000 * _MOST_NODES * PER_NODE)},
    )
    spec = VirtualPoolSpec(name="lab-burst", tenant_id=lab.virtual_pool.tenant_id, pool_id=pool.pool_id, limits=limits)
    share = until_accepted(lambda: operator.virtual_pools.create(spec))
    device = DeviceRequest(kind=DeviceKind.NPU, flavors=(_FLAVOR,))
    return Wave(policy, submit_simulated(lab, share, "wave", _TASKS, device, _TASK_SECONDS))


def finish(operator: Client, lab: DemoTenant, wave: Wave) -> list[ScalingDecisionView]:
    """What was decided, the oldest first, once all work is done and all nodes are given back.

    Raises:
        DemoFailed: the work failed, the pool did not shrink in time, or a decision lacks its reason.
    """
    ended = lab.client.jobs.wait(wave.job.job_id, timeout_seconds=60)
    if ended.state is not JobState.SUCCEEDED:
        raise DemoFailed(f"{wave.job.name} ended as {ended.state.value}: {ended.message or 'no message'}")
    policy_id = wave.policy.scaling_policy_id

    def all_released() -> bool:
        orders = list(operator.node_orders.list(scaling_policy_id=policy_id))
        return bool(orders) and all(order.state is NodeOrderState.RELEASED for order in orders)

    until(all_released, "the nodes of pool burst were not given back", 90)
    decided = [
        one
        for one in operator.scaling_decisions.list(scaling_policy_id=policy_id)
        if one.action is not ScalingAction.NONE
    ][::-1]
    if not decided or not all(one.reason and one.inputs for one in decided):
        raise DemoFailed("a decision about pool burst has no reason")
    return decided
