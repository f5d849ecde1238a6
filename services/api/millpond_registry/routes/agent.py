"""`/v1/nodes/join` and `/v1/agent/…`: what a node agent says, with a join token, a signature, then a node token."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from millpond_contracts.bodies.nodes import (
    ChallengeAnswer,
    ChallengeRequest,
    Heartbeat,
    HeartbeatAnswer,
    InventoryReport,
    JoinAnswer,
    JoinRequest,
    NodeState,
    ReadyReport,
    SessionAnswer,
    SessionRenewal,
    SessionRequest,
)
from millpond_contracts.bodies.tenants import Role
from millpond_contracts.resources import series_of
from millpond_kernel.auth import NodeCaller
from millpond_kernel.border import ReadOnce
from millpond_kernel.db import SYSTEM
from millpond_registry.usecases import joins, reports, sessions
from millpond_registry.usecases.reports import Beat

router = APIRouter(prefix="/v1", tags=["agents"], route_class=ReadOnce)


@router.post("/nodes/join", status_code=201)
async def join_node(request: Request, body: JoinRequest) -> JoinAnswer:
    """Makes this machine a node; the same key gives the same node. The join token is the credential."""
    async with request.app.state.kernel.database.begin(SYSTEM) as unit:
        return await joins.join_node(unit, body)


@router.post("/agent/challenges", status_code=201)
async def issue_challenge(request: Request, body: ChallengeRequest) -> ChallengeAnswer:
    """A nonce to sign with the node's key; it serves once, within a minute."""
    async with request.app.state.kernel.database.begin(SYSTEM) as unit:
        return await sessions.issue_challenge(unit, body.node_id)


@router.post("/agent/sessions", status_code=201)
async def start_session(request: Request, body: SessionRequest) -> SessionAnswer:
    """Exchanges a signed nonce for a node token; every older session of the node is superseded."""
    async with request.app.state.kernel.database.begin(SYSTEM) as unit:
        session = await sessions.start_session(unit, body)
    return _answer(request, session)


@router.post("/agent/sessions/renew")
async def renew_session(request: Request, body: SessionRenewal, caller: NodeCaller) -> SessionAnswer:
    """A fresh node token for the session that the present one belongs to."""
    async with request.app.state.kernel.database.begin(SYSTEM) as unit:
        session = await sessions.renew_session(unit, caller)
    return _answer(request, session)


@router.put("/agent/inventory", status_code=204)
async def take_inventory(request: Request, body: InventoryReport, caller: NodeCaller) -> Response:
    """Replaces the node's inventory; a sequence that is not higher than the stored one changes nothing."""
    async with request.app.state.kernel.database.begin(SYSTEM) as unit:
        await reports.take_inventory(unit, caller, body)
    return Response(status_code=204)


@router.post("/agent/ready", status_code=204)
async def report_ready(request: Request, body: ReadyReport, caller: NodeCaller) -> Response:
    """States that the node can work; until then nothing is placed there."""
    async with request.app.state.kernel.database.begin(SYSTEM) as unit:
        await reports.report_ready(unit, caller, body)
    return Response(status_code=204)


@router.post("/agent/heartbeat")
async def take_heartbeat(request: Request, body: Heartbeat, caller: NodeCaller) -> HeartbeatAnswer:
    """Notes a sign of life and passes the signals on; a node that was taken for lost is back at once."""
    kernel = request.app.state.kernel
    assert caller.node_id is not None
    assert caller.incarnation is not None
    beat: Beat | None = None
    if not body.conditions:
        beat = await request.app.state.beats.ask((caller.node_id, caller.incarnation))
    if beat is None:
        async with kernel.database.begin(SYSTEM) as unit:
            beat = await reports.note_heartbeat(unit, caller, body)
    state = beat.state
    if state is NodeState.UNREACHABLE:
        # A transaction of its own: it takes the node's row, which must never wait behind a heartbeat's row.
        async with kernel.database.begin(SYSTEM) as unit:
            state = await reports.recover_node(unit, caller)
    series = [*body.series, *series_of(body.signals)]
    await request.app.state.telemetry.forward(caller.node_id, beat.pool_id, beat.at, body.monotonic_ms, series)
    return beat.answer(body, state, kernel.settings.heartbeat_seconds)


def _answer(request: Request, session: sessions.Session) -> SessionAnswer:
    kernel = request.app.state.kernel
    token, expires = kernel.issuer.issue(
        str(session.node_id),
        {
            "role": Role.NODE.value,
            "node": str(session.node_id),
            "pool": str(session.pool.pool_id),
            "inc": session.incarnation,
        },
        kernel.settings.node_token_seconds,
    )
    return SessionAnswer(
        token=token,
        expires_at=datetime.fromtimestamp(expires, UTC),
        incarnation=session.incarnation,
        heartbeat_seconds=reports.heartbeat_interval(
            session.pool.unreachable_after_seconds, kernel.settings.heartbeat_seconds
        ),
        pool=session.pool,
    )
