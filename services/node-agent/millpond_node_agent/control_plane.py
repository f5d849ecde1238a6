"""What the agent says to the two services it knows, within a session that keeps itself alive.

A session is opened by signing a nonce, gives a token for a few minutes, and is renewed before it ends: renewing keeps
the node's incarnation, opening raises it. Source: decision 13.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pydantic import BaseModel

from millpond_contracts.bodies.nodes import (
    ChallengeAnswer,
    ChallengeRequest,
    Heartbeat,
    HeartbeatAnswer,
    InventoryReport,
    JoinAnswer,
    JoinRequest,
    ReadyReport,
    SessionAnswer,
    SessionRenewal,
    SessionRequest,
)
from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.bodies.work import LogAnswer, LogChunk, PollAnswer, PollRequest, ReportAnswer, ReportBatch
from millpond_contracts.errors import ErrorCode
from millpond_node_agent.client import READ_SECONDS, Answer, Away, HttpClient, Refused
from millpond_node_agent.identity import Membership, NodeKey
from millpond_node_agent.observability import log
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.settings import VERSION

JOIN: Final = "/v1/nodes/join"
CHALLENGE: Final = "/v1/agent/challenges"
SESSION: Final = "/v1/agent/sessions"
RENEW: Final = "/v1/agent/sessions/renew"
INVENTORY: Final = "/v1/agent/inventory"
READY: Final = "/v1/agent/ready"
HEARTBEAT: Final = "/v1/agent/heartbeat"
POLL: Final = "/v1/work/poll"
REPORTS: Final = "/v1/work/reports"
LOGS: Final = "/v1/work/logs"

_TOKEN_SECONDS = 300.0  # where the server does not tell its own time; decision 13
_RENEW_AGAIN_MS = 5_000
_END_MARGIN_MS = 1_000  # the Date header has whole seconds
_UNAUTHORIZED = 401


class NotAMember(Exception):
    """The registry does not open a session for this key any more."""


class Acknowledgement(Outgoing):
    """An answer of which only its arrival matters."""


@dataclass(frozen=True, slots=True)
class Session:
    """An open session, with the instants of this machine's clock at which to renew it and at which it is over."""

    answer: SessionAnswer
    renew_ms: int
    end_ms: int


class ControlPlane:
    """Calls as one node. `on_session` is told of every session that was opened, not of renewals."""

    def __init__(self, http: HttpClient, membership: Membership, key: NodeKey) -> None:
        self._http = http
        self._membership = membership
        self._key = key
        self._session: Session | None = None
        self._lock = asyncio.Lock()
        self.on_session: Callable[[SessionAnswer], None] = lambda answer: None

    async def session(self) -> SessionAnswer:
        """The open session, opened or renewed first when needed.

        Raises:
            Away: the registry does not answer.
            NotAMember: it does not know this key.
            Superseded: another agent with this identity has a newer session.
        """
        async with self._lock:
            session = self._session
            if session is None:
                session = await self._open()
            elif monotonic_ms() >= session.renew_ms:
                session = await self._renew(session)
            self._session = session
            return session.answer

    async def send_inventory(self, report: InventoryReport) -> None:
        """Replace the node's inventory."""
        await self._call("registry", INVENTORY, report, Acknowledgement, method="PUT")

    async def send_ready(self, report: ReadyReport) -> None:
        """State that this node can work."""
        await self._call("registry", READY, report, Acknowledgement)

    async def send_heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """A sign of life with signals."""
        return await self._call("registry", HEARTBEAT, beat, HeartbeatAnswer)

    async def poll_work(self, request: PollRequest) -> PollAnswer:
        """Orders, as soon as there are some, else after `wait_seconds`."""
        return await self._call(
            "scheduler", POLL, request, PollAnswer, read_seconds=READ_SECONDS + request.wait_seconds
        )

    async def send_reports(self, batch: ReportBatch) -> ReportAnswer:
        """Make reports durable at the scheduler."""
        return await self._call("scheduler", REPORTS, batch, ReportAnswer)

    async def push_log(self, chunk: LogChunk) -> LogAnswer:
        """Append to the server's copy of a log."""
        return await self._call("scheduler", LOGS, chunk, LogAnswer)

    async def _call(
        self,
        service: str,
        path: str,
        body: BaseModel,
        answer: type[Answer],
        *,
        method: str = "POST",
        read_seconds: float = READ_SECONDS,
    ) -> Answer:
        token = (await self.session()).token
        try:
            parsed, _ = await self._http.send(
                service, path, body, answer, method=method, headers=_bearer(token), read_seconds=read_seconds
            )
        except Refused as refused:
            if refused.status != _UNAUTHORIZED and refused.code != ErrorCode.NODE_NOT_FOUND:
                raise
            # The next call asks the registry for a better token; until then this one counts as not answered.
            self._doubt(token)
            raise Away(f"the session is not accepted: {refused.detail}") from refused
        return parsed

    def _doubt(self, token: str) -> None:
        if self._session is not None and self._session.answer.token == token:
            self._session = replace(self._session, renew_ms=0, end_ms=0)

    async def _open(self) -> Session:
        node_id = self._membership.node_id
        try:
            challenge, _ = await self._http.send(
                "registry", CHALLENGE, ChallengeRequest(node_id=node_id), ChallengeAnswer
            )
            request = SessionRequest(
                node_id=node_id,
                nonce=challenge.nonce,
                signature=self._key.sign_session(node_id, challenge.nonce),
                boot_id=boot_id(),
                agent_version=VERSION,
            )
            answer, date = await self._http.send("registry", SESSION, request, SessionAnswer)
        except Refused as refused:
            raise NotAMember(refused.detail) from refused
        log.info("session_opened", node_id=str(node_id), incarnation=answer.incarnation, pool=answer.pool.name)
        self.on_session(answer)
        return _timed(answer, date)

    async def _renew(self, session: Session) -> Session:
        headers = _bearer(session.answer.token)
        try:
            answer, date = await self._http.send("registry", RENEW, SessionRenewal(), SessionAnswer, headers=headers)
        except Refused as refused:
            log.info("session_not_renewed", reason=refused.detail)
            return await self._open()
        except Away:
            # The token still serves the scheduler while the registry is away.
            if (now := monotonic_ms()) >= session.end_ms:
                raise
            return replace(session, renew_ms=now + _RENEW_AGAIN_MS)
        return _timed(answer, date)


async def join(http: HttpClient, request: JoinRequest, url: str) -> Membership:
    """Make this key a node, or find the node that it already is.

    Raises:
        Away: the registry does not answer.
        Refused: it does not let this machine in.
    """
    # The key makes a repeated join the same join.
    answer, _ = await http.send(
        "registry", JOIN, request, JoinAnswer, headers={"idempotency-key": f"join-{request.public_key}"}
    )
    return Membership(answer.node_id, answer.name, url)


def _timed(answer: SessionAnswer, date: datetime | None) -> Session:
    # Only the server's clock counts; half of the token's life is left for a registry that restarts.
    life = _TOKEN_SECONDS if date is None else (answer.expires_at - date).total_seconds()
    life_ms, now = int(max(life, 1.0) * 1000), monotonic_ms()
    return Session(answer, now + life_ms // 2, now + life_ms - _END_MARGIN_MS)


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
