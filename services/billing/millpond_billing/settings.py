"""Settings of billing."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from millpond_kernel.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings of the billing service."""

    model_config = SettingsConfigDict(
        env_prefix="MILLPOND_BILLING_", frozen=True, extra="ignore", populate_by_name=True
    )

    service: ClassVar[str] = "billing"

    export_folder: Path = Field(Path("/var/lib/millpond/exports"), description="where built exports lie")
    export_step_rows: int = Field(
        2000, ge=1, le=100_000, description="charges written to an export between two marks of how far it is"
    )
    export_days: int = Field(30, ge=1, le=3650, description="how long the file of an export is kept, in days")
    statement_grace_seconds: int = Field(
        172_800, ge=0, le=2_592_000, description="time after a period's end before its statement is closed, in seconds"
    )
    due_seconds: float = Field(
        5.0, ge=0.1, le=600, description="interval of the look for statements and exports that are due, in seconds"
    )
    overdue_seconds: int = Field(
        60, ge=1, le=86_400, description="after this queued background work is handed out again, in seconds"
    )
    reconcile_seconds: float = Field(
        30.0, ge=0.1, le=3600, description="interval of the comparison with live allocations, in seconds"
    )
