"""Names that the outside relies on: event types, error codes, what bodies refuse and events ignore."""

import re

import pytest
from pydantic import ValidationError

from millpond_contracts.bodies.tenants import TenantSpec
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events import EVENT_TYPES, PUBLISHERS, Event
from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_contracts.ids import ApiKeyId
from millpond_contracts.routes import SERVICES

pytestmark = pytest.mark.unit


def test_event_types_when_listed_then_publisher_past_and_version() -> None:
    assert set(PUBLISHERS) <= set(SERVICES)
    for name, cls in EVENT_TYPES.items():
        assert re.fullmatch(rf"({'|'.join(PUBLISHERS)})\.[a-z_]+\.v[1-9]", name), name
        assert cls.__module__ == f"millpond_contracts.events.{name.partition('.')[0]}"
        assert cls.model_config["frozen"]
    assert len({cls.__name__ for cls in EVENT_TYPES.values()}) == len(EVENT_TYPES)


def test_events_when_each_is_defined_then_it_says_what_it_is_about() -> None:
    for cls in EVENT_TYPES.values():
        assert cls.subject is not Event.subject, cls
        assert cls.generation_of is not Event.generation_of, cls


def test_event_when_a_newer_one_has_more_fields_then_an_old_reader_takes_it() -> None:
    body = {"api_key_id": str(ApiKeyId.new()), "tenant_id": None, "generation": 2, "since_version_9": [1]}
    assert ApiKeyRevoked.model_validate(body).generation == 2


def test_body_when_it_has_more_fields_then_refused() -> None:
    with pytest.raises(ValidationError):
        TenantSpec.model_validate({"name": "acme", "since_version_9": 1})


def test_error_codes_when_listed_then_each_is_one_of_a_service_with_a_status_of_an_error() -> None:
    values = [code.value for code in ErrorCode]
    assert len(set(values)) == len(values)
    for code in ErrorCode:
        service, noun, what = code.value.split(".")
        assert service in {"kernel", *PUBLISHERS}, code
        assert noun
        assert what
        assert 400 <= code.status < 600
        assert code.meaning[0].isupper()
        assert str(code) == code.value
