"""How a machine becomes a node: a join token, a key of its own, an inventory.

Source: docs/decisions, identity (a node is bound to its key, never to a firmware id, hostname or address).
"""

import base64
import hashlib
from collections import Counter
from datetime import datetime

from millpond_contracts.bodies.nodes import JoinAnswer, JoinRequest, JoinTokenView, NodeState
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import NodeRegistered
from millpond_contracts.ids import NodeId
from millpond_contracts.resources import NodeInventory
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.devices import merge_devices
from millpond_registry.domain.nodes import Node, own_labels
from millpond_registry.domain.pools import choose_pool, unique_name
from millpond_registry.store import join_tokens, nodes, pools
from millpond_registry.store.clock import read_clock
from millpond_registry.store.devices import put_devices
from millpond_registry.usecases.flavors import resolve_flavors
from millpond_registry.usecases.nodes import announce


def raw_key(text: str) -> bytes:
    """The bytes of a key or signature in unpadded base64url."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def secret_hash(token: str) -> bytes:
    """What is stored of a join token."""
    return hashlib.sha256(token.encode()).digest()


def check_identities(inventory: NodeInventory) -> None:
    """Refuses an inventory that names a device twice: one of the two would hide the other.

    Raises:
        ProblemError: 422 with the identity.
    """
    twice = [name for name, count in Counter(device.identity for device in inventory.devices).items() if count > 1]
    if twice:
        raise ProblemError(ErrorCode.BODY_INVALID, f"The inventory names the device {twice[0]} more than once.")


async def join_node(unit: UnitOfWork, request: JoinRequest) -> JoinAnswer:
    """The node of the machine that holds this key: a new one, or the one that it already is.

    Raises:
        ProblemError: 401 for a token that is unknown, revoked, expired or used up; 409 when no pool takes the node.
    """
    check_identities(request.inventory)
    key = raw_key(request.public_key)
    known = await nodes.find_node_by_key(unit, key)
    token = await join_tokens.lock_join_token_by_secret(unit, secret_hash(request.token))
    now = await read_clock(unit)
    # A machine that joined with this token before may ask again, also after the token's last use: its answer was lost.
    token = _check_token(token, now, joined_before=known is not None)
    if known is not None:
        return JoinAnswer(node_id=known.id, name=known.name, pool_id=known.pool_id)
    labels = {**own_labels(request.labels), **token.labels}
    pool = await _pool_for(unit, token, request.inventory, labels)
    node = Node(
        id=NodeId.new(),
        pool_id=pool.pool_id,
        name=unique_name(request.name, await nodes.names_in_pool(unit, pool.pool_id)),
        public_key=key,
        state=NodeState.JOINED,
        state_since=now,
        inventory=request.inventory,
        created_at=now,
        boot_id=request.inventory.boot_id,
        labels=labels,
        market=token.market,
        last_heartbeat_at=now,
    )
    await nodes.insert_node(unit, node, now)
    flavor_names = await resolve_flavors(unit, request.inventory.devices)
    devices = merge_devices((), request.inventory.devices, lambda device: flavor_names[device.identity], now)
    await put_devices(unit, node.id, devices)
    await join_tokens.count_use(unit, token.join_token_id)
    await announce(unit, node, NodeRegistered, devices)
    return JoinAnswer(node_id=node.id, name=node.name, pool_id=node.pool_id)


def _check_token(token: JoinTokenView | None, now: datetime, *, joined_before: bool) -> JoinTokenView:
    if token is None:
        raise ProblemError(ErrorCode.JOIN_TOKEN_INVALID, "No such join token; ask an operator for one.")
    if token.revoked:
        raise ProblemError(ErrorCode.JOIN_TOKEN_INVALID, f"Join token {token.join_token_id} was revoked.")
    if joined_before:
        return token
    if token.expires_at <= now:
        raise ProblemError(
            ErrorCode.JOIN_TOKEN_INVALID, f"Join token {token.join_token_id} expired at {token.expires_at.isoformat()}."
        )
    if token.max_uses is not None and token.uses >= token.max_uses:
        raise ProblemError(
            ErrorCode.JOIN_TOKEN_INVALID, f"Join token {token.join_token_id} was used {token.uses} times, its most."
        )
    return token


async def _pool_for(
    unit: UnitOfWork, token: JoinTokenView, inventory: NodeInventory, labels: dict[str, str]
) -> PoolView:
    """The pool that the token names, else the first whose selector takes the node; its row is kept from deletion."""
    if token.pool_id is not None:
        named = await pools.lock_pool(unit, token.pool_id)
        if named is None:
            raise ProblemError(ErrorCode.POOL_NOT_FOUND, f"The join token's pool {token.pool_id} was deleted.")
        return named
    candidates = await pools.read_all_pools(unit)
    while (chosen := choose_pool(candidates, inventory, labels)) is not None:
        locked = await pools.lock_pool(unit, chosen.pool_id)
        if locked is not None:
            return locked
        candidates = [pool for pool in candidates if pool.pool_id != chosen.pool_id]
    raise ProblemError(
        ErrorCode.POOL_NONE_MATCHES,
        "No pool's selector takes this node; create a pool that does, or a join token that names the pool.",
    )
