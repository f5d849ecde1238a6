"""Settings of the registry."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from millpond_kernel.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings of the registry service."""

    model_config = SettingsConfigDict(
        env_prefix="MILLPOND_REGISTRY_", frozen=True, extra="ignore", populate_by_name=True
    )

    service: ClassVar[str] = "registry"

    node_token_seconds: int = Field(300, ge=10, le=3600, description="life of a node token, in seconds")
    heartbeat_seconds: int = Field(
        10, ge=1, le=60, description="seconds between heartbeats; fewer where a pool allows less silence"
    )
    watch_interval_seconds: float = Field(
        1.0, ge=0.05, le=60, description="seconds between two looks for nodes that fell silent"
    )
    capacity_interval_seconds: float = Field(
        1.0, ge=0.05, le=60, description="seconds between two counts of what changed, and between capacity events"
    )
    recount_seconds: float = Field(60.0, ge=0.1, le=3600, description="seconds between full recounts of capacity")
    replenish_interval_seconds: float = Field(
        5.0, ge=0.05, le=600, description="seconds between two looks at the pools' thresholds and at lent nodes"
    )
    telemetry_max_bytes: int = Field(
        33_554_432, ge=1_048_576, description="about how many bytes the telemetry stream may hold in Redis"
    )
