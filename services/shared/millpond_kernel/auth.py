"""Authentication of every request: API keys and tokens, verified locally, revoked within seconds.

A key is exchanged once at quota for a token and cached by its hash. Verification keys are kept in the service's own
schema, so that a restart without quota works. Revocations arrive as events (`DenySet`).
"""

import base64
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from joserfc.jwk import OKPKey

from millpond_contracts.bodies.tenants import Jwks, Role, TokenAnswer
from millpond_contracts.errors import ErrorCode
from millpond_kernel.clients import ServiceAway, ServiceClient, away_problem
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.tokens import TokenInvalid, verify_token

KEY_PREFIX = "mp_"
REFRESH_SECONDS = 5.0
CACHE_LIMIT = 20_000

Exchange = Callable[[str], Awaitable[TokenAnswer]]


class DenySet:
    """Keys that were revoked or changed their role, fed by quota's events. Entries outlive every token made before."""

    def __init__(self) -> None:
        self._revoked: set[str] = set()
        self._roles: dict[str, Role] = {}

    def revoke(self, api_key_id: str) -> None:
        """Refuses every token of this key from now on."""
        self._revoked.add(api_key_id)

    def change_role(self, api_key_id: str, role: Role) -> None:
        """Refuses tokens of this key that carry another role."""
        self._roles[api_key_id] = role

    def denies(self, principal: Principal) -> bool:
        """Whether the principal's key was revoked or has another role now."""
        if principal.api_key_id is None:
            return False
        key = str(principal.api_key_id)
        return key in self._revoked or self._roles.get(key, principal.role) is not principal.role


class Authenticator:
    """Turns the Authorization header into a principal."""

    def __init__(
        self,
        database: Database,
        issuers: dict[str, ServiceClient],
        deny: DenySet,
        *,
        exchange: Exchange | None = None,
    ) -> None:
        """Args:
        issuers: issuer name -> the service that publishes its keys; a service that issues has no entry for itself.
        exchange: how this service exchanges an API key; None = over HTTP at quota.
        """
        self._database = database
        self._issuers = issuers
        self.exchange: Exchange = exchange or self._exchange_at_quota
        self.deny = deny
        self._keys: dict[str, OKPKey] = {}
        self._principals: dict[bytes, Principal] = {}
        self._refreshed_at = -REFRESH_SECONDS

    async def authenticate(self, header: str | None) -> Principal:
        """The caller behind `Authorization: Bearer …`.

        Raises:
            ProblemError: 401 missing, invalid, expired or revoked; 503 when a key was never seen and quota is away.
        """
        if header is None or not header.strip():
            raise ProblemError(ErrorCode.CREDENTIALS_MISSING, "Send 'Authorization: Bearer <API key or token>'.")
        scheme, _, credentials = header.strip().partition(" ")
        credentials = credentials.strip()
        if scheme.lower() != "bearer" or not credentials or len(credentials) > 4096:
            raise ProblemError(ErrorCode.CREDENTIALS_INVALID, "Expected 'Authorization: Bearer <API key or token>'.")
        digest = hashlib.sha256(credentials.encode()).digest()
        principal = self._principals.get(digest)
        if principal is None or principal.expires_at <= time.time() + 1:
            principal = await self._resolve(credentials)
            if len(self._principals) >= CACHE_LIMIT:
                self._principals.clear()
            self._principals[digest] = principal
        self.check(principal)
        return principal

    def check(self, principal: Principal) -> None:
        """Refuses a principal that was revoked or whose token is over; open watches call it again and again.

        Raises:
            ProblemError: 401 `kernel.credentials.revoked`.
        """
        if self.deny.denies(principal):
            self._principals = {k: v for k, v in self._principals.items() if v.api_key_id != principal.api_key_id}
            raise ProblemError(ErrorCode.CREDENTIALS_REVOKED, "This key was revoked or its role changed.")

    async def _resolve(self, credentials: str) -> Principal:
        if not credentials.startswith(KEY_PREFIX):
            return await self._verify(credentials)
        try:
            answer = await self.exchange(credentials)
        except ServiceAway as error:
            raise away_problem(error) from error
        return await self._verify(answer.token)

    async def _exchange_at_quota(self, api_key: str) -> TokenAnswer:
        response = await self._issuers["quota"].request("POST", "/internal/v1/tokens/quota", json={"api_key": api_key})
        if response.status_code == 401:
            code = ErrorCode.CREDENTIALS_INVALID
            if response.json().get("code") == ErrorCode.CREDENTIALS_REVOKED.value:
                code = ErrorCode.CREDENTIALS_REVOKED
            raise ProblemError(code, str(response.json().get("detail", "The API key is not valid.")))
        if response.status_code != 200:
            raise ServiceAway(f"quota answered {response.status_code} to the key's exchange")
        return TokenAnswer.model_validate(response.json())

    async def _verify(self, token: str) -> Principal:
        try:
            return verify_token(token, self._keys)
        except TokenInvalid as error:
            if not error.unknown_kid:
                code = ErrorCode.CREDENTIALS_REVOKED if error.expired else ErrorCode.CREDENTIALS_INVALID
                raise ProblemError(code, f"Not accepted: {error}.") from error
        await self.load_keys()
        try:
            return verify_token(token, self._keys)
        except TokenInvalid as error:
            raise ProblemError(ErrorCode.CREDENTIALS_INVALID, f"Not accepted: {error}.") from error

    async def load_keys(self) -> None:
        """Reads verification keys from the schema, and from the issuers at most every few seconds."""
        await self.read_keys()
        now = time.monotonic()
        if now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        fetched: list[tuple[str, str, bytes]] = []
        for issuer, client in self._issuers.items():
            try:
                jwks = Jwks.model_validate(await client.get_json(f"/internal/v1/jwks/{issuer}"))
            except ServiceAway:
                self._refreshed_at = 0.0
                continue
            fetched.extend(
                (key.kid, issuer, _raw_public(key.x)) for key in jwks.keys if key.kid.startswith(f"{issuer}-")
            )
        if fetched:
            async with self._database.begin(SYSTEM) as unit:
                await unit.connection.executemany(
                    "INSERT INTO signing_key (kid, issuer, public_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                    fetched,
                )
            await self.read_keys()

    async def read_keys(self) -> None:
        """Reads the verification keys that this service's schema holds."""
        async with self._database.begin(SYSTEM) as unit:
            rows = await unit.fetch("SELECT kid, public_key FROM signing_key")
        self._keys = {row["kid"]: _public_key(bytes(row["public_key"])) for row in rows}


def _raw_public(x: str) -> bytes:
    return base64.urlsafe_b64decode(x + "=" * (-len(x) % 4))


def _public_key(raw: bytes) -> OKPKey:
    return OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": _b64(raw)})


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


async def authenticated(request: Request) -> Principal:
    """FastAPI dependency: the verified caller."""
    authenticator: Authenticator = request.app.state.kernel.authenticator
    principal = await authenticator.authenticate(request.headers.get("authorization"))
    request.state.principal = principal
    return principal


def allow(*roles: Role) -> Any:
    """FastAPI dependency: a verified caller that has one of `roles`; anybody else gets 403."""

    async def check(principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
        if principal.role not in roles:
            wanted = ", ".join(sorted(role.value for role in roles))
            raise ProblemError(
                ErrorCode.ROLE_FORBIDDEN,
                f"This needs the role {wanted}; these credentials have {principal.role.value}.",
            )
        return principal

    return Depends(check)


Caller = Annotated[Principal, Depends(authenticated)]
OperatorCaller = Annotated[Principal, allow(Role.OPERATOR)]
ServiceCaller = Annotated[Principal, allow(Role.SERVICE)]
NodeCaller = Annotated[Principal, allow(Role.NODE)]
# Reads of tenants and operators; writes of members; administration of a tenant.
ReaderCaller = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER)]
MemberCaller = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN, Role.MEMBER)]
AdminCaller = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN)]
