"""Settings of the scheduler."""

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from millpond_contracts.bodies.groups import AttributeName, TaskKind
from millpond_kernel.settings import ServiceSettings
from millpond_scheduler.domain.distance import DEFAULT_PROFILES, MAX_WEIGHT, DistanceRules, Wish
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.quarantine import QuarantineRules
from millpond_scheduler.domain.scoring import KERNEL_NODES
from millpond_scheduler.providers.kernels import KernelMode


class AttributeWish(BaseModel):
    """One attribute of devices in the profile of a kind of task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: int = Field(ge=0, le=MAX_WEIGHT)
    wanted: float = Field(ge=0, le=1e15, allow_inf_nan=False)


class Settings(ServiceSettings):
    """Settings of the scheduler service."""

    model_config = SettingsConfigDict(
        env_prefix="MILLPOND_SCHEDULER_", frozen=True, extra="ignore", populate_by_name=True
    )

    service: ClassVar[str] = "scheduler"

    log_folder: Path = Field(Path("millpond-logs"), description="folder of the tasks' logs, shared by all copies")
    log_days: int = Field(14, ge=1, le=3650, description="days that logs are kept after their last byte")
    history_days: int = Field(400, ge=1, le=36_500, description="days that ended jobs and allocations are kept")
    batch_tasks: int = Field(500, ge=1, le=10_000, description="most placements of one transaction")
    leader_seconds: float = Field(10.0, ge=1, le=300, description="life of the leader's lease")
    poll_seconds: float = Field(1.0, ge=0.05, le=60, description="how often the leader looks without being woken")
    hold_after_seconds: int = Field(
        600, ge=1, le=86_400, description="wait for capacity after which a node is kept free for a task"
    )
    hold_seconds: int = Field(
        3600, ge=1, le=604_800, description="longest that nodes are kept free where no time limit tells until when"
    )
    evictions_per_hour: int = Field(
        3, ge=0, le=3600, description="how often a task, with its gang, is stopped for others at most; 0 = no bound"
    )
    distance_profiles: dict[TaskKind, dict[AttributeName, AttributeWish]] = Field(
        default_factory=dict,
        description="which attributes of devices count for a kind of task, as JSON such as"
        ' `{"training": {"bf16_tflops": {"weight": 4, "wanted": 300}}}`; a kind that is named is replaced as a whole',
    )
    distance_step_permille: int = Field(
        50, ge=1, le=1001, description="hardware whose distance is within one step is equally near; 1001 = all is"
    )
    kernels: KernelMode = Field(
        KernelMode.AUTO,
        description="what scores nodes: `numpy`, `numba` (machine code, about 110 MB of memory), or `auto`: `numba`"
        f" from {KERNEL_NODES} nodes on; both give the same answers",
    )
    plan_seconds: float = Field(1.0, ge=0, le=60, description="age of what `/v1/plans` knows at most")
    verdict_seconds: float = Field(2.0, ge=0.1, le=60, description="most frequent writing of verdicts")
    lease_check_seconds: float = Field(2.0, ge=0.1, le=60, description="interval of the look at the nodes' leases")
    freeze_percent: int = Field(
        50, ge=1, le=101, description="share of a pool's nodes whose silence together ends nobody's work; 101 = none"
    )
    freeze_nodes: int = Field(3, ge=1, le=100_000, description="fewest silent nodes of a pool that are so many")
    freeze_seconds: int = Field(
        3600, ge=0, le=604_800, description="after its lease a silent node is then given up, whatever the others do"
    )
    quarantine_failures: int = Field(
        5,
        ge=0,
        le=1000,
        description="different jobs that fail on a node in a row at once before it is closed; 0 = never",
    )
    quarantine_seconds: int = Field(10, ge=1, le=3600, description="how soon after its start a job fails at once")
    quarantine_percent: int = Field(
        25, ge=1, le=100, description="most of a pool's nodes that are closed so; one at least where others stay open"
    )
    recount_seconds: float = Field(30.0, ge=1, le=3600, description="interval of the recount of guards and usage")

    def quarantine(self) -> QuarantineRules:
        """When a node that fails job after job is closed."""
        return QuarantineRules(self.quarantine_failures, self.quarantine_seconds, self.quarantine_percent)

    def policy(self) -> Policy:
        """What the leader decides by, and what plans are made by."""
        given = {
            kind: {name: Wish(wish.weight, wish.wanted) for name, wish in wishes.items()}
            for kind, wishes in self.distance_profiles.items()
        }
        distance = DistanceRules({**DEFAULT_PROFILES, **given}, self.distance_step_permille)
        return Policy(self.hold_after_seconds, self.hold_seconds, distance, self.evictions_per_hour)
