"""`/v1/api-keys`, `/v1/tokens`, `/v1/me`, and the exchange that services use."""

import time
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from millpond_contracts.bodies.shapes import Incoming, Page
from millpond_contracts.bodies.tenants import ApiKeySpec, ApiKeyView, Me, Role, TokenAnswer, TokenRequest
from millpond_contracts.ids import ApiKeyId, ProjectId, TenantId
from millpond_kernel.app import Kernel
from millpond_kernel.auth import KEY_PREFIX, AdminCaller, Caller
from millpond_kernel.db import SYSTEM
from millpond_kernel.filters import NameQuery
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_quota.store import api_keys as rows_of_keys
from millpond_quota.usecases import api_keys as usecases

router = APIRouter(prefix="/v1", tags=["keys"])
internal = APIRouter(prefix="/internal/v1", include_in_schema=False)


class RoleChange(Incoming):
    """A key's new role."""

    role: Role


async def exchange(token_seconds: int, kernel: Kernel, api_key: str) -> TokenAnswer:
    """A token for an API key, signed here, valid for `token_seconds`; it never outlives the key.

    Raises:
        ProblemError: 401 invalid or revoked.
    """
    assert kernel.issuer is not None
    async with kernel.database.begin(SYSTEM) as unit:
        found = await usecases.exchange_api_key(unit, api_key)
    seconds = token_seconds
    if found.expires_epoch is not None:
        seconds = max(1, min(seconds, int(found.expires_epoch - time.time())))
    token, expires = kernel.issuer.issue(found.subject, found.claims, seconds)
    return TokenAnswer(token=token, expires_at=datetime.fromtimestamp(expires, UTC))


@router.post("/tokens")
async def create_token(request: Request, body: TokenRequest) -> TokenAnswer:
    """Exchanges an API key for a token of five minutes."""
    kernel: Kernel = request.app.state.kernel
    return await kernel.authenticator.exchange(body.api_key)


@internal.post("/tokens/quota")
async def exchange_for_service(request: Request, body: TokenRequest) -> TokenAnswer:
    """The same for another service that was shown the key."""
    kernel: Kernel = request.app.state.kernel
    return await kernel.authenticator.exchange(body.api_key)


@router.get("/me")
async def who_am_i(request: Request, caller: Caller) -> Me:
    """Who these credentials are, with the names of what they belong to."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        return await usecases.describe_caller(unit, caller, is_token=not _is_key(request))


def _is_key(request: Request) -> bool:
    return request.headers.get("authorization", "").partition(" ")[2].strip().startswith(KEY_PREFIX)


@router.post("/api-keys", status_code=201, response_model=ApiKeyView)
async def create_api_key(request: Request, spec: ApiKeySpec, caller: AdminCaller, key: IdempotencyKey) -> Response:
    """Creates a key; the answer alone shows the secret. A replay shows the key without it."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_api_key(unit, caller, spec),
        location=lambda made: f"/v1/api-keys/{made.api_key_id}",
        redact=lambda made: made.model_copy(update={"secret": None}),
    )


@router.get("/api-keys")
async def list_api_keys(
    request: Request,
    caller: AdminCaller,
    paging: Paging,
    tenant_id: TenantId | None = None,
    project: ProjectId | None = None,
    role: Annotated[tuple[Role, ...], Query(max_length=8, description="any of these")] = (),
    name: NameQuery = None,
    revoked: Annotated[
        bool | None, Query(description="only those that are revoked, or only those that are not")
    ] = None,
) -> Page[ApiKeyView]:
    """Lists keys, never their secrets."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_keys.list_api_keys(
            unit,
            paging.after_uuid(),
            paging.limit + 1,
            tenant_id=tenant_id,
            project=project,
            roles=role,
            name=name,
            is_revoked=revoked,
        )
    return make_page(rows, paging, rows_of_keys.api_key_view, lambda row: ApiKeyId.of(row["id"]))


@router.get("/api-keys/{api_key_id}")
async def get_api_key(request: Request, response: Response, api_key_id: ApiKeyId, caller: AdminCaller) -> ApiKeyView:
    """One key."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = rows_of_keys.api_key_view(await rows_of_keys.get_api_key(unit, api_key_id))
    response.headers["ETag"] = etag(view.generation)
    return view


@router.put("/api-keys/{api_key_id}/role")
async def change_role(
    request: Request, response: Response, api_key_id: ApiKeyId, body: RoleChange, caller: AdminCaller, match: IfMatch
) -> ApiKeyView:
    """Changes a key's role; tokens with the old one are refused within five seconds."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.change_role(unit, caller, api_key_id, body.role, match)
    response.headers["ETag"] = etag(view.generation)
    return view


@router.post("/api-keys/{api_key_id}/revoke")
async def revoke_api_key(request: Request, api_key_id: ApiKeyId, caller: AdminCaller) -> ApiKeyView:
    """Revokes a key: refused everywhere within five seconds. Revoking again changes nothing."""
    kernel: Kernel = request.app.state.kernel
    async with kernel.database.begin(caller.scope) as unit:
        view = await usecases.revoke_api_key(unit, caller, api_key_id)
    kernel.authenticator.deny.revoke(str(api_key_id))
    return view
