"""Ed25519 tokens: issued by quota (people, services) and registry (nodes), verified with keys that are kept locally."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from millpond_contracts.bodies.tenants import Jwk, Role
from millpond_contracts.ids import ApiKeyId, NodeId, PoolId, ProjectId, TenantId
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.tenancy import Principal

ALGORITHM = "Ed25519"
TOKEN_SECONDS = 300


class TokenInvalid(Exception):
    """The token is malformed, expired, or signed by an unknown key; then `unknown_kid` names the key to look for."""

    def __init__(self, message: str, *, unknown_kid: str = "", expired: bool = False) -> None:
        super().__init__(message)
        self.unknown_kid = unknown_kid
        self.expired = expired


class TokenIssuer:
    """Signs tokens with the newest private key of one service's schema."""

    def __init__(self, issuer: str, kid: str, key: OKPKey) -> None:
        self.issuer = issuer
        self._kid = kid
        self._key = key

    @classmethod
    async def load(cls, database: Database, issuer: str) -> "TokenIssuer":
        """The issuer with the schema's key; the first caller makes the key, others find it."""
        async with database.begin(SYSTEM) as unit:
            await unit.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"signing_key/{database.service}")
            row = await unit.fetchrow(
                "SELECT kid, private_key FROM signing_key WHERE issuer = $1 AND private_key IS NOT NULL"
                " ORDER BY created_at DESC LIMIT 1",
                issuer,
            )
            if row is None:
                private = Ed25519PrivateKey.generate()
                raw = private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
                public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
                kid = f"{issuer}-{public.hex()[:16]}"
                await unit.execute(
                    "INSERT INTO signing_key (kid, issuer, public_key, private_key) VALUES ($1, $2, $3, $4)",
                    kid,
                    issuer,
                    public,
                    raw,
                )
            else:
                kid, raw = str(row["kid"]), bytes(row["private_key"])
        return cls(issuer, kid, _private_key(raw))

    def issue(self, subject: str, claims: Mapping[str, Any], ttl_seconds: int = TOKEN_SECONDS) -> tuple[str, float]:
        """A signed token and the POSIX time of its end."""
        now = int(time.time())
        expires = now + ttl_seconds
        payload = {"iss": self.issuer, "sub": subject, "iat": now, "exp": expires, **claims}
        header = {"alg": ALGORITHM, "kid": self._kid}
        return jwt.encode(header, payload, self._key, algorithms=[ALGORITHM]), float(expires)


def _private_key(raw: bytes) -> OKPKey:
    public = Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "d": _b64(raw), "x": _b64(public)})


def public_key(raw: bytes) -> OKPKey:
    """The verification key of a raw public key."""
    return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": _b64(raw)})


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def public_jwk(kid: str, public: bytes) -> Jwk:
    """The JWK of a raw public key."""
    return Jwk(kid=kid, x=_b64(public))


def verify_token(token: str, keys: Mapping[str, OKPKey]) -> Principal:
    """The principal that a token proves.

    Args:
        token: the compact JWS.
        keys: kid -> verification key.

    Raises:
        TokenInvalid: see the class.
    """
    try:
        kid = str(_header_of(token).get("kid", ""))
    except (ValueError, RecursionError) as error:
        raise TokenInvalid("the token cannot be read") from error
    key = keys.get(kid)
    if key is None:
        raise TokenInvalid("the token's key is not known", unknown_kid=kid or "?")
    try:
        claims = jwt.decode(token, key, algorithms=[ALGORITHM]).claims
        expires_at = float(claims.get("exp", 0))
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise TokenInvalid("the token's signature is not valid") from error
    if expires_at <= time.time():
        raise TokenInvalid("the token has expired", expired=True)
    issuer = kid.rsplit("-", 1)[0]
    if claims.get("iss") != issuer:
        raise TokenInvalid("the token's issuer is not its key's")
    return _principal(claims)


def _header_of(token: str) -> dict[str, Any]:
    text = token.split(".", 1)[0]
    header = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    if not isinstance(header, dict):
        raise ValueError("the header is not an object")
    return header


def _principal(claims: Mapping[str, Any]) -> Principal:
    try:
        role = Role(claims["role"])
        # A token of the registry speaks for a node and for nothing else; quota never issues one for a node.
        if (claims["iss"] == "registry") != (role is Role.NODE):
            raise TokenInvalid("this issuer may not give this role")
        return Principal(
            role=role,
            subject=str(claims["sub"]),
            expires_at=float(claims["exp"]),
            tenant_id=TenantId.parse(claims["tenant"]) if claims.get("tenant") else None,
            project_id=ProjectId.parse(claims["project"]) if claims.get("project") else None,
            api_key_id=ApiKeyId.parse(claims["key"]) if claims.get("key") else None,
            node_id=NodeId.parse(claims["node"]) if claims.get("node") else None,
            pool_id=PoolId.parse(claims["pool"]) if claims.get("pool") else None,
            incarnation=int(claims["inc"]) if claims.get("inc") is not None else None,
        )
    except (KeyError, ValueError) as error:
        raise TokenInvalid("the token's claims are not complete") from error
