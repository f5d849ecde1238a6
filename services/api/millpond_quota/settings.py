"""Settings of quota."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from millpond_kernel.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings of the quota service."""

    model_config = SettingsConfigDict(env_prefix="MILLPOND_QUOTA_", frozen=True, extra="ignore", populate_by_name=True)

    service: ClassVar[str] = "quota"

    token_seconds: int = Field(300, ge=10, le=3600, description="life of a token made from an API key, in seconds")
