"""Who this machine is: an Ed25519 key that never leaves it, and the node id that was issued to that key.

The state folder is the identity. A lock file keeps a second agent out of it.
"""

import base64
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from millpond_contracts.ids import NodeId
from millpond_node_agent.runtimes import runfolder

_KEY = "key"
_NODE = "node.json"
_LOCK = "agent.lock"


class FolderInUse(Exception):
    """Another agent runs on this state folder."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What the registry answered to the join, and where the control plane is."""

    node_id: NodeId
    name: str
    url: str


class NodeKey:
    """The machine's private key; it signs session nonces."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def load(cls, state_dir: Path) -> Self:
        """The key of this state folder, made on the first call and readable by its owner only."""
        path = state_dir / _KEY
        if not path.exists():
            made = Ed25519PrivateKey.generate().private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
            _write_once(path, made)
        return cls(Ed25519PrivateKey.from_private_bytes(path.read_bytes()))

    @property
    def public_text(self) -> str:
        """The raw public key in unpadded base64url."""
        return _unpadded(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign_session(self, node_id: NodeId, nonce: str) -> str:
        """The signature that opens a session, in unpadded base64url."""
        return _unpadded(self._key.sign(f"millpond-session:{node_id}:{nonce}".encode()))


class StateLock:
    """Held by the one agent of a state folder; the kernel lets go of it when the agent dies."""

    def __init__(self, state_dir: Path) -> None:
        """Take the lock.

        Raises:
            FolderInUse: another agent holds it.
        """
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(state_dir / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise FolderInUse(
                f"another agent runs on {state_dir}; stop it, or give --state-dir another folder"
            ) from error

    def release(self) -> None:
        """Let another agent in, also while a program that is just being started still has a copy of the file open."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)


def read_membership(state_dir: Path) -> Membership | None:
    """The node that this state folder is, None when it never joined."""
    document = runfolder.read_document(str(state_dir / _NODE))
    if document is None:
        return None
    return Membership(NodeId.parse(document["node_id"]), document["name"], document["url"])


def write_membership(state_dir: Path, membership: Membership) -> None:
    """Remember the node over restarts."""
    document = {"node_id": str(membership.node_id), "name": membership.name, "url": membership.url}
    runfolder.write_document(str(state_dir / _NODE), document, durable=True)


def _write_once(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole and durable: half a key would lock the machine out for ever."""
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
