"""Settings of the autoscaler."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from millpond_kernel.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings of the autoscaler service."""

    model_config = SettingsConfigDict(
        env_prefix="MILLPOND_AUTOSCALER_", frozen=True, extra="ignore", populate_by_name=True
    )

    service: ClassVar[str] = "autoscaler"

    simulated_folder: Path = Field(
        Path("/var/lib/millpond/simulated-orders"),
        description="where orders for simulated nodes lie; an agent with `--simulate` watches the folder",
    )
    decide_seconds: float = Field(2.0, ge=0.1, le=600, description="seconds between two looks at all policies")
    signals_seconds: float = Field(5.0, ge=0.1, le=15, description="seconds between two readings of the telemetry")
    signal_fresh_seconds: float = Field(
        60.0, ge=15, le=3600, description="a device that told nothing for so many seconds is unknown, not idle"
    )
    settle_seconds: float = Field(
        10.0, ge=0, le=600, description="seconds in which what waits may not yet know of a node that has joined"
    )
    stock_out_seconds: float = Field(
        120.0, ge=0, le=86_400, description="seconds for which a provider that had none is not asked again"
    )
