"""Settings that every service has; a service subclasses `ServiceSettings` and adds its own.

Read from the environment: shared fields as `MILLPOND_<FIELD>`, a service's own as `MILLPOND_<SERVICE>_<FIELD>`.
"""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

# As browsers write one: a scheme, a host in lower case, a port unless it is the scheme's own. No path, no wildcard.
_ORIGIN = re.compile(r"^https?://(\[[0-9a-f:]+\]|[a-z0-9]([a-z0-9.-]*[a-z0-9])?)(:[1-9][0-9]{0,4})?$")


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
    autoscaler_url: str = Field(
        "http://127.0.0.1:7070",
        validation_alias=shared("autoscaler_url"),
        description="where services reach autoscaler",
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
    writes_waiting: int = Field(
        256,
        ge=1,
        le=100_000,
        validation_alias=shared("writes_waiting"),
        description="most writes of people that wait in one process; further ones are answered 429",
    )
    reads_waiting: int = Field(
        256,
        ge=1,
        le=100_000,
        validation_alias=shared("reads_waiting"),
        description="most reads of people that wait in one process; further ones are answered 429",
    )
    tenant_requests_per_second: float = Field(
        500.0,
        ge=0.1,
        le=1_000_000,
        validation_alias=shared("tenant_requests_per_second"),
        description="requests a second of one tenant that one process of one service takes; more are answered 429",
    )
    tenant_requests_burst: int = Field(
        5_000,
        ge=1,
        le=10_000_000,
        validation_alias=shared("tenant_requests_burst"),
        description="most requests of one tenant at once, before that rate holds",
    )
    tenant_streams: int = Field(
        1_000,
        ge=1,
        le=100_000,
        validation_alias=shared("tenant_streams"),
        description="most watches and followed logs of one tenant that one process of one service keeps open",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        validation_alias=shared("cors_origins"),
        max_length=32,
        description="origins whose pages may call the API from a browser, exact, separated by commas; none by default",
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

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _read_origins(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.match(origin):
                raise ValueError(f"expected an origin such as https://portal.example.com, found {origin[:80]!r}")
        return origins

    def url_of(self, service: str) -> str:
        """The base URL of another service."""
        return str(getattr(self, f"{service}_url"))
