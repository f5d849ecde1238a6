"""Writes .env beside docker-compose.yml: fresh passwords and first API keys (mode 0600). An existing file is kept."""

import os
import secrets
import sys
from pathlib import Path

from millpond_contracts.events import PUBLISHERS
from millpond_quota.bootstrap import make_key

ENV_FILE = Path(__file__).resolve().parents[1] / ".env"


def render() -> str:
    """The text of a new .env."""
    passwords = ("OWNER", "REDIS", *(service.upper() for service in PUBLISHERS))
    lines = [f"MILLPOND_{name}_PASSWORD={secrets.token_hex(32)}" for name in passwords]
    lines += [f"MILLPOND_{service.upper()}_SERVICE_KEY={make_key()}" for service in PUBLISHERS]
    lines.append(f"MILLPOND_OPERATOR_KEY={make_key()}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the file, unless there is one."""
    try:
        descriptor = os.open(ENV_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.stderr.write(f"{ENV_FILE} exists and is kept\n")
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(render())
    sys.stderr.write(f"wrote {ENV_FILE}; MILLPOND_OPERATOR_KEY in it is the first operator's key\n")


if __name__ == "__main__":
    main()
