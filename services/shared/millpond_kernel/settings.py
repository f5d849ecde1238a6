"""Settings that every service has; a service subclasses `ServiceSettings` and adds its own.

Read from the environment: shared fields as `MILLPOND_<FIELD>`, a service's own as `MILLPOND_<SERVICE>_<FIELD>`.
"""

from typing import ClassVar, Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def shared(name: str) -> AliasChoices:
    """The environment variable of a field that all services share."""
    return AliasChoices(f"MILLPOND_{name.upper()}", name)


class ServiceSettings(BaseSettings):
    """What the kernel needs to run one service."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    service: ClassVar[str] = ""

    database_url: SecretStr = Field(description="URL of this service's own login role, without table rights")
    service_key: SecretStr = Field(SecretStr(""), description="API key of role `service` for calls to other services")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"), validation_alias=shared("redis_url"), description="Redis 7 or Valkey"
    )
    redis_prefix: str = Field(
        "millpond", validation_alias=shared("redis_prefix"), max_length=64, description="prefix of every Redis key"
    )
    registry_url: str = Field(
        "http://127.0.0.1:7070", validation_alias=shared("registry_url"), description="where services reach registry"
    )
    quota_url: str = Field(
        "http://127.0.0.1:7070", validation_alias=shared("quota_url"), description="where services reach quota"
    )
    scheduler_url: str = Field(
        "http://127.0.0.1:7070", validation_alias=shared("scheduler_url"), description="where services reach scheduler"
    )
    billing_url: str = Field(
        "http://127.0.0.1:7070", validation_alias=shared("billing_url"), description="where services reach billing"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", validation_alias=shared("log_level"))
    log_format: Literal["json", "console"] = Field("json", validation_alias=shared("log_format"))
    database_pool_size: int = Field(
        8, ge=2, le=64, validation_alias=shared("database_pool_size"), description="most connections of one process"
    )
    database_wait_seconds: float = Field(
        30.0, ge=0, le=600, validation_alias=shared("database_wait_seconds"), description="wait for schema at start"
    )
    max_body_bytes: int = Field(
        1_048_576, ge=1024, le=67_108_864, validation_alias=shared("max_body_bytes"), description="largest request body"
    )
    worker_grace_seconds: float = Field(
        10.0, ge=0, le=120, validation_alias=shared("worker_grace_seconds"), description="time to finish on stop"
    )
    feed_silence_seconds: float = Field(
        5.0,
        ge=0.1,
        le=60,
        validation_alias=shared("feed_silence_seconds"),
        description="silence before the feed is read",
    )

    def url_of(self, service: str) -> str:
        """The base URL of another service."""
        return str(getattr(self, f"{service}_url"))
