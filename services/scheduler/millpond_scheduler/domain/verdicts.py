"""The reasons why a task waits, in the order in which they are asked, and how one of them is chosen as the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a node was passed over, in the order of the filters; then what can hold a task back without any node.

    A node counts under the first filter that it fails, so the counts of one request sum to the nodes of its pool.
    """

    PLACEABLE = "placeable"
    WRONG_POOL = "wrong_pool"
    DEDICATED_TO_OTHERS = "dedicated_to_others"
    NOT_SCHEDULABLE = "not_schedulable"
    CORDONED = "cordoned"
    LABEL_MISMATCH = "label_mismatch"
    AFFINITY_MISMATCH = "affinity_mismatch"
    TOPOLOGY_UNKNOWN = "topology_unknown"
    NOT_SIMULATED = "not_simulated"
    TAINT = "taint"
    WRONG_ARCHITECTURE = "wrong_architecture"
    NO_CONTAINER_RUNTIME = "no_container_runtime"
    NO_MATCHING_DEVICE = "no_matching_device"
    WRONG_DEVICE_MODE = "wrong_device_mode"
    INCOMPATIBLE_RUNTIME = "incompatible_runtime"
    INCOMPATIBLE_VERSION = "incompatible_version"
    UNKNOWN_ECOSYSTEM = "unknown_ecosystem"
    MISSING_ATTRIBUTE = "missing_attribute"
    ATTRIBUTE_TOO_LOW = "attribute_too_low"
    NOT_ENOUGH_CPU = "not_enough_cpu"
    NOT_ENOUGH_MEMORY = "not_enough_memory"
    NOT_ENOUGH_DEVICES = "not_enough_devices"
    NO_LEGAL_START = "no_legal_start"
    LARGEST_FREE_BLOCK_TOO_SMALL = "largest_free_block_too_small"
    DEVICE_SHARED_WITH_OTHER_TENANT = "device_shared_with_other_tenant"
    NO_ISOLATION = "no_isolation"
    ANTI_AFFINITY = "anti_affinity"
    SPREAD_REACHED = "spread_reached"
    DOMAIN_TOO_SMALL = "domain_too_small"
    EARMARKED = "earmarked"
    # Without a node:
    POOL_EMPTY = "pool_empty"
    NO_VIRTUAL_POOL = "no_virtual_pool"
    LIMIT_REACHED = "limit_reached"
    GUARANTEE_OF_OTHERS = "guarantee_of_others"
    GANG_STOPPING = "gang_stopping"
    RECLAIMING = "reclaiming"
    PREEMPTING = "preempting"
    MOVING = "moving"


@dataclass(frozen=True, slots=True)
class Unblock:
    """Something that somebody could do, and what it would change."""

    action: str
    effect: str


REASONS: tuple[Reason, ...] = tuple(Reason)
CODES: Mapping[Reason, int] = {reason: code for code, reason in enumerate(REASONS)}

# What passes with time: running work ends, a hold is used.
CAPACITY_REASONS = frozenset(
    {
        Reason.NOT_ENOUGH_CPU,
        Reason.NOT_ENOUGH_MEMORY,
        Reason.NOT_ENOUGH_DEVICES,
        Reason.NO_LEGAL_START,
        Reason.LARGEST_FREE_BLOCK_TOO_SMALL,
        Reason.DEVICE_SHARED_WITH_OTHER_TENANT,
        Reason.NO_ISOLATION,
        Reason.ANTI_AFFINITY,
        Reason.SPREAD_REACHED,
        Reason.DOMAIN_TOO_SMALL,
        Reason.EARMARKED,
    }
)
# What ends when something else stops: for these it is asked what might.
STOPPABLE_REASONS = CAPACITY_REASONS | {Reason.LIMIT_REACHED, Reason.GUARANTEE_OF_OTHERS}
# What an operator or a returning node changes.
STATE_REASONS = frozenset({Reason.NOT_SCHEDULABLE, Reason.CORDONED})


def decide_dominant(counts: Mapping[Reason, int], *, unavailable_would_match: bool = True) -> Reason:
    """The one reason to show: the nearest to a start, so that what is named is what the task really waits for.

    Nodes that match but are full come first, then matching nodes that take no work now, then mismatches; within one
    of these the most frequent reason, and of equally frequent ones the later filter.

    Args:
        counts: nodes per reason; they sum to the pool's nodes.
        unavailable_would_match: whether a node that takes no work now has hardware that matches the request.
    """
    present = {reason: count for reason, count in counts.items() if count}
    if not present:
        return Reason.POOL_EMPTY
    if Reason.PLACEABLE in present:
        return Reason.PLACEABLE
    groups = [CAPACITY_REASONS, STATE_REASONS] if unavailable_would_match else [CAPACITY_REASONS]
    mismatches = frozenset(present) - CAPACITY_REASONS - STATE_REASONS
    for group in [*groups, mismatches, STATE_REASONS]:
        inside = [reason for reason in present if reason in group]
        if inside:
            return max(inside, key=lambda reason: (present[reason], CODES[reason]))
    raise AssertionError("every reason is in one of the groups")


_MESSAGES: Mapping[Reason, str] = {
    Reason.PLACEABLE: "a node has room; the task starts with the next cycle",
    Reason.WRONG_POOL: "the pool has no such node",
    Reason.DEDICATED_TO_OTHERS: "the pool is dedicated to another tenant",
    Reason.NOT_SCHEDULABLE: "the matching nodes are not ready",
    Reason.CORDONED: "the matching nodes are cordoned",
    Reason.LABEL_MISMATCH: "no node carries the labels asked for",
    Reason.AFFINITY_MISMATCH: "no node's labels or place are as the job's affinity asks",
    Reason.TOPOLOGY_UNKNOWN: "it is not known where the nodes stand, of which the job asks",
    Reason.NOT_SIMULATED: "the job is a simulation and the nodes are real",
    Reason.TAINT: "the nodes carry a taint that the job does not tolerate",
    Reason.WRONG_ARCHITECTURE: "the nodes' processor architecture is not one that the job accepts",
    Reason.NO_CONTAINER_RUNTIME: "the job needs an image and the nodes have no container runtime",
    Reason.NO_MATCHING_DEVICE: "no node has a device of the kind and flavor asked for",
    Reason.WRONG_DEVICE_MODE: "the devices are not given out as asked: whole and in shares, or in such partitions",
    Reason.INCOMPATIBLE_RUNTIME: "the nodes' runtime is not one that the job accepts",
    Reason.INCOMPATIBLE_VERSION: "the nodes' software does not satisfy the job's version constraints",
    Reason.UNKNOWN_ECOSYSTEM: "the nodes do not report software that the job constrains",
    Reason.MISSING_ATTRIBUTE: "the devices do not report an attribute that the job constrains",
    Reason.ATTRIBUTE_TOO_LOW: "the devices are below a minimum that the job asks for",
    Reason.NOT_ENOUGH_CPU: "no matching node has enough free CPU",
    Reason.NOT_ENOUGH_MEMORY: "no matching node has enough free memory",
    Reason.NOT_ENOUGH_DEVICES: "no matching node has enough free devices",
    Reason.NO_LEGAL_START: "enough is free in sum, but nowhere where such a partition may begin",
    Reason.LARGEST_FREE_BLOCK_TOO_SMALL: "enough is free in sum, but not in one piece on one node",
    Reason.DEVICE_SHARED_WITH_OTHER_TENANT: "the devices with room hold slices of another tenant",
    Reason.NO_ISOLATION: "the nodes with room run another tenant's tasks without isolation",
    Reason.ANTI_AFFINITY: "the nodes with room are beside tasks that the job's anti-affinity keeps away from",
    Reason.SPREAD_REACHED: "the nodes with room are where the job's spread allows no more of its tasks",
    Reason.DOMAIN_TOO_SMALL: "enough nodes have room, but no one domain for all that the job packs together",
    Reason.EARMARKED: "the nodes with room are kept for a task that has waited longer",
    Reason.POOL_EMPTY: "the pool has no node",
    Reason.NO_VIRTUAL_POOL: "the virtual pool is not known to the scheduler yet",
    Reason.LIMIT_REACHED: "the virtual pool's limit is reached",
    Reason.GUARANTEE_OF_OTHERS: "what is free is guaranteed to other virtual pools",
    Reason.RECLAIMING: "what was lent is being taken back: tasks of others are stopping to make room",
    Reason.PREEMPTING: "work of lower priority in the virtual pool is being stopped to make room",
    Reason.MOVING: "running tasks are being moved to other nodes to make room",
    Reason.GANG_STOPPING: "the tasks of the gang that still run are being stopped; then it waits as a whole",
}

# Of a dry run, which changes nothing.
_TRIAL_MESSAGES: Mapping[Reason, str] = {
    **_MESSAGES,
    Reason.RECLAIMING: "what was lent would be taken back: tasks of others would be stopped to make room",
    Reason.PREEMPTING: "work of lower priority in the virtual pool would be stopped to make room",
}


def describe_reason(reason: Reason, count: int, total: int, *, is_trial: bool = False) -> str:
    """A sentence for people: the reason, and how many of the pool's nodes it holds back."""
    text = (_TRIAL_MESSAGES if is_trial else _MESSAGES)[reason]
    return f"{text} ({count} of {total} nodes)" if count else text
