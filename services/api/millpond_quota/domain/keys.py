"""API keys: `mp_<id>_<secret>`, 256 bits of secret, of which only the SHA-256 is kept.

A fast hash is right here: the secret is random and long, so there is nothing to guess (decision record on keys).
"""

import hashlib
import hmac
import secrets

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.ids import ApiKeyId

PREFIX = "mp"
_SECRET_BYTES = 32

# Roles that live inside a tenant, and those that stand above all tenants.
TENANT_ROLES = frozenset({Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER})
SYSTEM_ROLES = frozenset({Role.OPERATOR, Role.SERVICE})


def make_secret() -> str:
    """A new secret: 256 random bits in hexadecimal."""
    return secrets.token_hex(_SECRET_BYTES)


def format_key(api_key_id: ApiKeyId, secret: str) -> str:
    """The whole key as it is shown once."""
    return f"{PREFIX}_{str(api_key_id).partition('_')[2]}_{secret}"


def parse_key(text: str) -> tuple[ApiKeyId, str] | None:
    """The id and the secret of a key, or None when it is not written like one."""
    parts = text.split("_")
    if len(parts) != 3 or parts[0] != PREFIX:
        return None
    try:
        return ApiKeyId.parse(f"{ApiKeyId.prefix}_{parts[1]}"), parts[2]
    except ValueError:
        return None


def hash_secret(secret: str) -> bytes:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def is_secret(secret: str, stored: bytes) -> bool:
    """Whether the secret is the one whose hash is stored, in constant time."""
    return hmac.compare_digest(hash_secret(secret), stored)


def role_fits(role: Role, *, has_tenant: bool) -> bool:
    """Whether a key with this role may (and must) belong to a tenant. Node tokens come from the registry alone."""
    return role in (TENANT_ROLES if has_tenant else SYSTEM_ROLES)
