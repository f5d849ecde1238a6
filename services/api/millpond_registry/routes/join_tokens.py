"""`/v1/join-tokens`: what a machine needs to join."""

from fastapi import APIRouter, Request, Response

from millpond_contracts.bodies.nodes import JoinTokenSpec, JoinTokenView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import JoinTokenId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.generation import IfMatch
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_registry.routes.access import NodeKeeper
from millpond_registry.store import join_tokens as rows_of_tokens
from millpond_registry.usecases import join_tokens as usecases

router = APIRouter(prefix="/v1/join-tokens", tags=["join tokens"])


@router.post("", status_code=201, response_model=JoinTokenView)
async def create_join_token(request: Request, spec: JoinTokenSpec, caller: NodeKeeper, key: IdempotencyKey) -> Response:
    """Creates a join token; its text is shown in this answer only."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_join_token(unit, caller, spec),
        location=lambda made: f"/v1/join-tokens/{made.join_token_id}",
        redact=lambda made: made.model_copy(update={"token": None}),
    )


@router.get("")
async def list_join_tokens(request: Request, caller: OperatorCaller, paging: Paging) -> Page[JoinTokenView]:
    """Lists join tokens, ended ones too, without their texts."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_tokens.list_join_tokens(unit, paging.after_uuid(), paging.limit + 1)
    return make_page(rows, paging, rows_of_tokens.join_token_of, lambda row: JoinTokenId.of(row["id"]))


@router.delete("/{join_token_id}", status_code=204)
async def revoke_join_token(
    request: Request, join_token_id: JoinTokenId, caller: OperatorCaller, match: IfMatch
) -> None:
    """Revokes a join token; nodes that joined with it stay."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.revoke_join_token(unit, caller, join_token_id, match)
