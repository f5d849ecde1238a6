"""Authentication of every request: API keys and tokens, verified locally, revoked within seconds.

A key is exchanged once at quota for a token and cached by its hash. Verification keys are kept in the service's own
schema, so that a restart without quota works. Revocations arrive as events (`DenySet`).
"""

import asyncio
import base64
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.openapi.models import HTTPBearer as HTTPBearerModel
from fastapi.security.base import SecurityBase
from joserfc.jwk import OKPKey

from millpond_contracts.bodies.tenants import Jwks, Role, TokenAnswer
from millpond_contracts.errors import ErrorCode
from millpond_kernel.clients import ServiceAway, ServiceClient, away_problem, json_of
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.tokens import TokenInvalid, public_key, verify_token

KEY_PREFIX = "mp_"
MAX_KEY_LENGTH = 256
MAX_CREDENTIALS_LENGTH = 4096
# Keys are fetched from the issuers at most so often, and after a failure so soon again.
REFRESH_SECONDS = 5.0
RETRY_SECONDS = 1.0
CACHE_LIMIT = 20_000

Exchange = Callable[[str], Awaitable[TokenAnswer]]


class DenySet:
    """Keys that were revoked or changed their role, and tenants that may not act, fed by quota's events.

    Entries outlive every token made before them.
    """

    def __init__(self) -> None:
        self._revoked: set[str] = set()
        self._roles: dict[str, Role] = {}
        self._tenants: set[str] = set()

    def revoke(self, api_key_id: str) -> None:
        """Refuses every token of this key from now on."""
        self._revoked.add(api_key_id)

    def change_role(self, api_key_id: str, role: Role) -> None:
        """Refuses tokens of this key that carry another role."""
        self._roles[api_key_id] = role

    def set_tenant(self, tenant_id: str, *, active: bool) -> None:
        """Refuses every key of a tenant that is suspended or deleted, and takes it back when it is active again."""
        if active:
            self._tenants.discard(tenant_id)
        else:
            self._tenants.add(tenant_id)

    def denies(self, principal: Principal) -> bool:
        """Whether the principal's key was revoked or has another role now, or its tenant may not act."""
        if principal.tenant_id is not None and str(principal.tenant_id) in self._tenants:
            return True
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
        self._loading = asyncio.Lock()
        self._load_after = -REFRESH_SECONDS
        self._away: dict[str, ServiceAway] = {}

    @property
    def has_keys(self) -> bool:
        """Whether any verification key is known yet."""
        return bool(self._keys)

    async def authenticate(self, header: str | None) -> Principal:
        """The caller behind `Authorization: Bearer …`.

        Raises:
            ProblemError: 401 missing, invalid, expired or revoked; 503 when a key was never seen and quota is away.
        """
        if header is None or not header.strip():
            raise ProblemError(ErrorCode.CREDENTIALS_MISSING, "Send 'Authorization: Bearer <API key or token>'.")
        scheme, _, credentials = header.strip().partition(" ")
        credentials = credentials.strip()
        if scheme.lower() != "bearer" or not credentials or len(credentials) > MAX_CREDENTIALS_LENGTH:
            raise ProblemError(ErrorCode.CREDENTIALS_INVALID, "Expected 'Authorization: Bearer <API key or token>'.")
        digest = hashlib.sha256(credentials.encode()).digest()
        principal = self._principals.get(digest)
        # A key whose role changed is exchanged anew; a revoked one is refused by quota then.
        if principal is None or principal.expires_at <= time.time() + 1 or self.deny.denies(principal):
            principal = await self._resolve(credentials)
            if len(self._principals) >= CACHE_LIMIT:
                self._principals.clear()
            self._principals[digest] = principal
        self.check(principal)
        return principal

    def check(self, principal: Principal) -> None:
        """Refuses a principal that was revoked.

        Raises:
            ProblemError: 401 `kernel.credentials.revoked`.
        """
        if self.deny.denies(principal):
            raise ProblemError(ErrorCode.CREDENTIALS_REVOKED, "This key was revoked or its role changed.")

    async def _resolve(self, credentials: str) -> Principal:
        if not credentials.startswith(KEY_PREFIX):
            return await self._verify(credentials)
        if len(credentials) > MAX_KEY_LENGTH:
            raise ProblemError(ErrorCode.CREDENTIALS_INVALID, "An API key is shorter than this.")
        try:
            answer = await self.exchange(credentials)
        except ServiceAway as error:
            raise away_problem(error) from error
        return await self._verify(answer.token)

    async def _exchange_at_quota(self, api_key: str) -> TokenAnswer:
        response = await self._issuers["quota"].request("POST", "/internal/v1/tokens/quota", json={"api_key": api_key})
        if response.status_code == 422:
            raise ProblemError(ErrorCode.CREDENTIALS_INVALID, "This is not written like an API key.")
        if response.status_code == 401:
            code = ErrorCode.CREDENTIALS_INVALID
            problem = json_of(response)
            if problem.get("code") == ErrorCode.CREDENTIALS_REVOKED.value:
                code = ErrorCode.CREDENTIALS_REVOKED
            raise ProblemError(code, str(problem.get("detail", "The API key is not valid.")))
        if response.status_code != 200:
            raise ServiceAway(f"quota answered {response.status_code} to the key's exchange")
        return TokenAnswer.model_validate(json_of(response))

    async def _verify(self, token: str) -> Principal:
        try:
            return verify_token(token, self._keys)
        except TokenInvalid as error:
            if not error.unknown_kid:
                code = ErrorCode.CREDENTIALS_REVOKED if error.expired else ErrorCode.CREDENTIALS_INVALID
                raise ProblemError(code, f"Not accepted: {error}.") from error
            kid = error.unknown_kid
        await self.load_keys()
        try:
            return verify_token(token, self._keys)
        except TokenInvalid as error:
            away = self._away.get(kid.rpartition("-")[0])
            if error.unknown_kid and away is not None:
                raise away_problem(away) from error
            raise ProblemError(ErrorCode.CREDENTIALS_INVALID, f"Not accepted: {error}.") from error

    async def load_keys(self) -> None:
        """Reads verification keys from the issuers and the schema, at most every few seconds.

        Callers that come meanwhile wait for the one that reads, and find its keys.
        """
        async with self._loading:
            if time.monotonic() < self._load_after:
                return
            fetched: list[tuple[str, str, bytes]] = []
            self._away = {}
            for issuer in self._issuers:
                try:
                    fetched += await self._fetch_keys(issuer)
                except ServiceAway as error:
                    self._away[issuer] = error
            if fetched:
                async with self._database.begin(SYSTEM) as unit:
                    await unit.connection.executemany(
                        "INSERT INTO signing_key (kid, issuer, public_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                        fetched,
                    )
            await self.read_keys()
            self._load_after = time.monotonic() + (RETRY_SECONDS if self._away else REFRESH_SECONDS)

    async def _fetch_keys(self, issuer: str) -> list[tuple[str, str, bytes]]:
        answer = await self._issuers[issuer].get_json(f"/internal/v1/jwks/{issuer}")
        try:
            keys = Jwks.model_validate(answer).keys
            return [(key.kid, issuer, _raw_public(key.x)) for key in keys if key.kid.startswith(f"{issuer}-")]
        except ValueError as error:
            raise ServiceAway(f"{issuer} answered with keys that cannot be read") from error

    async def read_keys(self) -> None:
        """Reads the verification keys that this service's schema holds."""
        async with self._database.begin(SYSTEM) as unit:
            rows = await unit.fetch("SELECT kid, public_key FROM signing_key")
        self._keys = {row["kid"]: public_key(bytes(row["public_key"])) for row in rows}


def _raw_public(x: str) -> bytes:
    return base64.urlsafe_b64decode(x + "=" * (-len(x) % 4))


class BearerHeader(SecurityBase):
    """FastAPI dependency: the Authorization header as it came, described in OpenAPI as bearer credentials."""

    def __init__(self) -> None:
        self.model = HTTPBearerModel(description="An API key (`mp_…`), or a token made from one.")
        self.scheme_name = "bearer"

    async def __call__(self, request: Request) -> str | None:
        return request.headers.get("authorization")


async def authenticated(request: Request, header: Annotated[str | None, Security(BearerHeader())]) -> Principal:
    """FastAPI dependency: the verified caller, whose tenant may ask as often as this."""
    kernel = request.app.state.kernel
    authenticator: Authenticator = kernel.authenticator
    principal = await authenticator.authenticate(header)
    kernel.rates.admit(principal)
    request.state.principal = principal
    return principal


@dataclass(frozen=True, slots=True)
class Allowed:
    """FastAPI dependency: a verified caller that has one of `roles`; anybody else gets 403."""

    roles: tuple[Role, ...]

    async def __call__(self, principal: Annotated[Principal, Depends(authenticated)]) -> Principal:
        if principal.role not in self.roles:
            wanted = ", ".join(sorted(role.value for role in self.roles))
            raise ProblemError(
                ErrorCode.ROLE_FORBIDDEN,
                f"This needs the role {wanted}; these credentials have {principal.role.value}.",
            )
        return principal


def allow(*roles: Role) -> Any:
    """What marks a parameter of a route as its caller, who has one of `roles`."""
    return Depends(Allowed(roles))


Caller = Annotated[Principal, Depends(authenticated)]
OperatorCaller = Annotated[Principal, allow(Role.OPERATOR)]
ServiceCaller = Annotated[Principal, allow(Role.SERVICE)]
NodeCaller = Annotated[Principal, allow(Role.NODE)]
# Reads of tenants and operators; writes of members; administration of a tenant.
ReaderCaller = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER)]
MemberCaller = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN, Role.MEMBER)]
AdminCaller = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN)]
