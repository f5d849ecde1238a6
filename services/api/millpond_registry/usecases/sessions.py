"""Agent sessions: a nonce signed with the node's key becomes a short token; only the newest session counts."""

import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from millpond_contracts.bodies.nodes import ChallengeAnswer, NodeState, SessionRequest
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import NodeSessionOpened
from millpond_contracts.ids import NodeId
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.nodes import Node, open_session
from millpond_registry.store import challenges, nodes, pools
from millpond_registry.store.clock import read_clock
from millpond_registry.usecases.joins import raw_key
from millpond_registry.usecases.nodes import lock_existing_node, save_node

CHALLENGE_SECONDS = 60
# Whoever knows a node's id may ask for nonces; they must not fill the table.
MAX_PENDING = 16


@dataclass(frozen=True, slots=True)
class Session:
    """What a token is made from."""

    node_id: NodeId
    incarnation: int
    pool: PoolView


async def issue_challenge(unit: UnitOfWork, node_id: NodeId) -> ChallengeAnswer:
    """A nonce that the node may sign once within a minute.

    Raises:
        ProblemError: 404 for an unknown node, 429 while too many nonces wait.
    """
    node = await nodes.find_node(unit, node_id)
    if node is None or node.state is NodeState.REMOVED:
        raise ProblemError(ErrorCode.NODE_NOT_FOUND, f"There is no node {node_id}, or it was removed.")
    if await challenges.count_pending(unit, node_id) >= MAX_PENDING:
        raise ProblemError(
            ErrorCode.RATE_LIMITED,
            f"{MAX_PENDING} challenges of this node wait; sign one or wait a minute.",
            retry_after_seconds=CHALLENGE_SECONDS,
        )
    nonce = secrets.token_urlsafe(32)
    expires_at = await challenges.insert_challenge(unit, node_id, nonce, CHALLENGE_SECONDS)
    return ChallengeAnswer(nonce=nonce, expires_at=expires_at)


async def start_session(unit: UnitOfWork, request: SessionRequest) -> Session:
    """A new session of the node: every older one is superseded from this transaction on.

    Raises:
        ProblemError: 404 for an unknown node, 401 when the nonce or the signature does not fit.
    """
    node = await lock_existing_node(unit, request.node_id)
    if not await challenges.take_challenge(unit, node.id, request.nonce):
        raise ProblemError(
            ErrorCode.SIGNATURE_INVALID, "The nonce is not one of this node, was used, or is over a minute old."
        )
    _check_signature(node, request)
    now = await read_clock(unit)
    opened = open_session(node, request.boot_id, request.agent_version, now)
    await save_node(unit, node, opened, NodeSessionOpened)
    return Session(node.id, opened.incarnation, await _pool_of(unit, node))


async def renew_session(unit: UnitOfWork, caller: Principal) -> Session:
    """The caller's session as it is, for a fresh token: the incarnation stays, the pool may have changed.

    Raises:
        ProblemError: 409 when a newer session exists.
    """
    node = await find_own_node(unit, caller)
    return Session(node.id, node.incarnation, await _pool_of(unit, node))


async def lock_own_node(unit: UnitOfWork, caller: Principal) -> Node:
    """The calling agent's node, its row kept for this transaction.

    Raises:
        ProblemError: 404 after its removal, 409 when a newer session exists.
    """
    assert caller.node_id is not None
    return check_incarnation(await lock_existing_node(unit, caller.node_id), caller)


async def find_own_node(unit: UnitOfWork, caller: Principal) -> Node:
    """Like `lock_own_node`, without keeping the row."""
    assert caller.node_id is not None
    node = await nodes.find_node(unit, caller.node_id)
    if node is None or node.state is NodeState.REMOVED:
        raise ProblemError(ErrorCode.NODE_NOT_FOUND, f"Node {caller.node_id} was removed; join again to come back.")
    return check_incarnation(node, caller)


def check_incarnation(node: Node, caller: Principal) -> Node:
    """Refuses an agent that is not the node's newest.

    Raises:
        ProblemError: 409 `registry.node.superseded`.
    """
    if node.incarnation != caller.incarnation:
        raise ProblemError(
            ErrorCode.NODE_SUPERSEDED,
            f"Session {caller.incarnation} of node {node.name} is over: session {node.incarnation} began."
            " Two agents with one key? This one must stop.",
        )
    return node


def _check_signature(node: Node, request: SessionRequest) -> None:
    message = f"millpond-session:{node.id}:{request.nonce}".encode()
    try:
        Ed25519PublicKey.from_public_bytes(node.public_key).verify(raw_key(request.signature), message)
    except InvalidSignature as error:
        raise ProblemError(
            ErrorCode.SIGNATURE_INVALID, f"The signature was not made with the key of node {node.name}."
        ) from error


async def _pool_of(unit: UnitOfWork, node: Node) -> PoolView:
    pool = await pools.find_pool(unit, node.pool_id)
    assert pool is not None, f"node {node.id} is in no pool"
    return pool
