"""How tasks are packed in a pool: settings that replays of its own jobs propose, for an operator to accept."""

from enum import StrEnum

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import PackingId, PoolId
from millpond_contracts.quantities import Instant


class PackingSpec(Incoming):
    """A pool whose newest jobs are replayed on its own nodes under several settings."""

    pool_id: PoolId


class PackingState(StrEnum):
    """queued → running → ready → accepted → withdrawn; one that cannot be computed: failed.

    Another one that is accepted withdraws the one in force; without any a pool has the default setting.
    """

    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"
    FAILED = "failed"


class PackingSetting(Outgoing):
    """What counts as equally good, in milli of a device, and what scarce things cost, in millionths of a device.

    `core_price` is for a core on nodes with little CPU beside their devices; on the others a device costs as much as
    the cores beside it on the average. `device_price` is for a device of a flavor that many insist on. Added is so much
    of the shadow prices of a linear program that packs what usually comes: `shadow_permille`, in thousandths.
    """

    quantum_milli: int
    core_price: int
    device_price: int
    shadow_permille: int = 0


class PackingScore(Outgoing):
    """How much of the pool's devices was allocated in the replays under a setting, in percent: the mean over loads."""

    setting: PackingSetting
    allocated_percent: float


class PackingView(Outgoing):
    """A proposal. Its figures are there from `ready` on.

    `gain_points` = percent allocated in the replays, above that of the default setting; `scores` = all of them, best
    first. `jobs` and `nodes` were replayed. `demand_change_permille` = how much of what comes now is other than what
    was replayed; a quarter and more makes it `is_stale`: ask for another one.
    """

    packing_id: PackingId
    pool_id: PoolId
    state: PackingState
    setting: PackingSetting | None = None
    gain_points: float | None = None
    scores: list[PackingScore] | None = None
    jobs: int | None = None
    nodes: int | None = None
    demand_change_permille: int | None = None
    is_stale: bool = False
    error: str | None = None
    created_at: Instant
    ready_at: Instant | None = None
    accepted_at: Instant | None = None
    accepted_by: str | None = None
    generation: int
