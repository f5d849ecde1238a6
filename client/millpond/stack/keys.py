"""The passwords and first keys of a stack: made once, kept in 0600 files of its secrets folder."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from millpond.stack.paths import StackPaths
from millpond.stack.users import SystemUser, write_private_file
from millpond_contracts.events import PUBLISHERS
from millpond_contracts.ids import ApiKeyId

SERVICES: Final = PUBLISHERS


@dataclass(frozen=True, slots=True)
class StackKeys:
    """Secrets of a stack.

    Attributes:
        operator_key: The first operator's API key.
        service_keys: Service -> its API key of role `service`.
        passwords: Service -> password of its database role.
    """

    operator_key: str
    service_keys: dict[str, str]
    passwords: dict[str, str]


def make_api_key() -> str:
    """A new API key, `mp_<id>_<secret>`; quota stores only its hash."""
    return f"mp_{str(ApiKeyId.new()).partition('_')[2]}_{secrets.token_hex(32)}"


def operator_key_file(paths: StackPaths) -> Path:
    """Where the first operator's key lies."""
    return paths.secrets / "operator.key"


def load_keys(paths: StackPaths, user: SystemUser | None) -> StackKeys:
    """The stack's secrets; made at the first call.

    Args:
        paths: The prepared stack.
        user: Owner of the file with the services' secrets; the operator's key stays readable by the caller alone.
    """
    file = paths.secrets / "stack.json"
    if file.exists():
        return _completed(StackKeys(**json.loads(file.read_text(encoding="utf-8"))), file, user)
    keys = StackKeys(
        operator_key=make_api_key(),
        service_keys={service: make_api_key() for service in SERVICES},
        passwords={service: secrets.token_hex(24) for service in SERVICES},
    )
    write_private_file(operator_key_file(paths), keys.operator_key + "\n", None)
    write_private_file(file, json.dumps(asdict(keys)), user)
    return keys


def _completed(keys: StackKeys, file: Path, user: SystemUser | None) -> StackKeys:
    """The keys with those of services that came after the stack was made; they are made and kept now."""
    missing = [service for service in SERVICES if service not in keys.service_keys]
    if missing:
        keys.service_keys.update({service: make_api_key() for service in missing})
        keys.passwords.update({service: secrets.token_hex(24) for service in missing})
        write_private_file(file, json.dumps(asdict(keys)), user)
    return keys


def write_environment(paths: StackPaths, environment: Mapping[str, str]) -> None:
    """Keeps the environment of the services for commands that run beside a running stack; for the caller alone."""
    write_private_file(paths.secrets / "environment.json", json.dumps(dict(environment)), None)


def read_environment(paths: StackPaths) -> dict[str, str]:
    """What `write_environment` kept last."""
    found: dict[str, str] = json.loads((paths.secrets / "environment.json").read_text(encoding="utf-8"))
    return found


def restore_key_files(paths: StackPaths, user: SystemUser | None) -> None:
    """Gives restored key files their owners again: the services' secrets are theirs, the operator's key the caller's.

    Raises:
        OSError: the files are not there.
    """
    file = paths.secrets / "stack.json"
    keys = StackKeys(**json.loads(file.read_text(encoding="utf-8")))
    write_private_file(operator_key_file(paths), keys.operator_key + "\n", None)
    write_private_file(file, json.dumps(asdict(keys)), user)
