"""Creating and revoking join tokens. The token itself is shown once; only its hash is stored."""

import secrets

from millpond_contracts.bodies.nodes import JoinTokenSpec, JoinTokenView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import JoinTokenId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.store import join_tokens
from millpond_registry.usecases.joins import secret_hash
from millpond_registry.usecases.pools import lock_existing_pool

TOKEN_PREFIX = "mpj_"


async def create_join_token(unit: UnitOfWork, caller: Principal, spec: JoinTokenSpec) -> JoinTokenView:
    """A new token, with its text.

    Raises:
        ProblemError: 404 for an unknown pool.
    """
    if spec.pool_id is not None:
        await lock_existing_pool(unit, spec.pool_id)
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    stored = await join_tokens.insert_join_token(
        unit,
        secret_hash=secret_hash(token),
        pool_id=spec.pool_id,
        expires_in_seconds=spec.expires_in_seconds,
        max_uses=spec.max_uses,
        market=spec.market,
        labels=spec.labels,
    )
    audit(unit, caller, "join_token.create", str(stored.join_token_id), after=stored)
    return stored.model_copy(update={"token": token})


async def revoke_join_token(unit: UnitOfWork, caller: Principal, token_id: JoinTokenId, if_match: str) -> None:
    """Ends a token: nobody joins with it any more; nodes that did stay.

    Raises:
        ProblemError: 404 unknown, 412 stale.
    """
    token = await join_tokens.lock_join_token(unit, token_id)
    if token is None:
        raise ProblemError(ErrorCode.JOIN_TOKEN_NOT_FOUND, f"There is no join token {token_id}.")
    check_if_match(if_match, token.generation)
    revoked = await join_tokens.revoke_join_token(unit, token_id)
    audit(unit, caller, "join_token.revoke", str(token_id), before=token, after=revoked)
