"""A small control plane for agents: the registry's and the scheduler's agent routes, kept in memory, over real HTTP.

It judges what it is sent with the contracts' own models, repeats orders until they are reported on, and can be told to
be away, to expire a token or to supersede a session.
"""

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import uvicorn
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

from millpond_contracts.bodies.allocations import DeviceShare, EndReason
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
from millpond_contracts.bodies.pools import DeviceSharing, NodeSelector, PoolIsolation, PoolView
from millpond_contracts.bodies.shapes import Problem
from millpond_contracts.bodies.work import (
    Assignment,
    LogAnswer,
    LogChunk,
    PollAnswer,
    PollRequest,
    RejectedReport,
    ReportAnswer,
    ReportBatch,
    ReportKind,
    StopOrder,
    TaskReport,
)
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, TaskId, TenantId
from millpond_node_agent.runtimes.boottime import monotonic_ms
from tests.waiting import eventually

JOIN_TOKEN = "join-token-of-the-test"


class FakeProblem(Exception):
    """Answered as problem+json."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail or code.meaning


class FakeControlPlane:
    """What was said to it, and what it will answer."""

    def __init__(self) -> None:
        self.lease_seconds = 300.0
        self.heartbeat_seconds = 1
        self.takes_series = False
        self.token_seconds = 300.0
        self.away = False
        self.refused_away = 0
        self.node_state = NodeState.CHECKING
        self.node_ids: dict[str, NodeId] = {}
        self.joins = 0
        self.incarnation = 0
        self.renewals = 0
        self.tokens: dict[str, int] = {}
        self.inventories: list[InventoryReport] = []
        self.ready: list[ReadyReport] = []
        self.heartbeats: list[Heartbeat] = []
        self.send_inventory = False
        self.polls: list[PollRequest] = []
        self.reports: list[TaskReport] = []
        self.delays_ms: list[int] = []
        self.poison: set[AllocationId] = set()
        self.logs: dict[AllocationId, bytearray] = {}
        self.ended_logs: set[AllocationId] = set()
        self.log_chunks: list[LogChunk] = []
        self.pool_id = PoolId.new()
        self._orders: dict[AllocationId, Assignment] = {}
        self._stops: dict[AllocationId, StopOrder] = {}
        self._rung = asyncio.Event()
        self._closing = False
        self.app = _routes(self)

    # What a test does to it

    def assign(
        self,
        script: str,
        *,
        memory_mib: int = 64,
        image: str | None = None,
        time_limit_seconds: int | None = None,
        grace_seconds: int = 1,
        devices: tuple[DeviceShare, ...] = (),
    ) -> AllocationId:
        """Order a shell script; returns its allocation."""
        assignment = Assignment(
            allocation_id=AllocationId.new(),
            epoch=3,
            job_id=JobId.new(),
            task_id=TaskId.new(),
            tenant_id=TenantId.new(),
            group="main",
            index=0,
            attempt=1,
            command=("/bin/sh", "-c", script),
            image=image,
            env={"WORD": "secret-word"},
            cpu_milli=500,
            memory_mib=memory_mib,
            devices=devices,
            stop_grace_seconds=grace_seconds,
            time_limit_seconds=time_limit_seconds,
        )
        self._orders[assignment.allocation_id] = assignment
        self._rung.set()
        return assignment.allocation_id

    def stop(
        self, allocation_id: AllocationId, reason: EndReason = EndReason.CANCELLED, grace_seconds: int = 1
    ) -> None:
        """Order a stop."""
        self._stops[allocation_id] = StopOrder(
            allocation_id=allocation_id, epoch=3, grace_seconds=grace_seconds, reason=reason
        )
        self._rung.set()

    def expire_tokens(self) -> None:
        """Refuse all present node tokens."""
        self.tokens.clear()

    def kinds(self, allocation_id: AllocationId) -> list[ReportKind]:
        """The kinds of its reports, in order of arrival."""
        return [report.kind for report in self.reports if report.allocation_id == allocation_id]

    def find_report(self, allocation_id: AllocationId, kind: ReportKind) -> TaskReport | None:
        """Its first report of a kind."""
        found = (r for r in self.reports if r.allocation_id == allocation_id and r.kind is kind)
        return next(found, None)

    async def wait_for_report(self, allocation_id: AllocationId, kind: ReportKind, seconds: float = 10.0) -> TaskReport:
        """That report, once it is here."""
        return await eventually(lambda: self.find_report(allocation_id, kind), seconds)

    def close(self) -> None:
        """Answer open polls, so that the server can end."""
        self._closing = True
        self._rung.set()

    # What it answers

    def judge(self, request: Request) -> None:
        """Refuse what has no session that counts."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            raise FakeProblem(ErrorCode.CREDENTIALS_INVALID)
        if self.tokens[token] != self.incarnation:
            raise FakeProblem(ErrorCode.NODE_SUPERSEDED)

    def answer_session(self) -> SessionAnswer:
        """A fresh token of the present incarnation."""
        token = f"node-token-{self.incarnation}-{len(self.tokens)}"
        self.tokens[token] = self.incarnation
        return SessionAnswer(
            token=token,
            expires_at=datetime.now(UTC) + timedelta(seconds=self.token_seconds),
            incarnation=self.incarnation,
            heartbeat_seconds=self.heartbeat_seconds,
            pool=self._pool(),
        )

    async def answer_poll(self, poll: PollRequest) -> PollAnswer:
        """Orders, as the scheduler gives them."""
        self.polls.append(poll)
        deadline = asyncio.get_running_loop().time() + poll.wait_seconds
        while True:
            self._rung.clear()
            held = {item.allocation_id for item in poll.held}
            orders = [order for order in self._orders.values() if order.allocation_id not in held]
            left = deadline - asyncio.get_running_loop().time()
            if orders or self._stops or left <= 0 or self._closing:
                return PollAnswer(
                    server_at=datetime.now(UTC),
                    lease_seconds=self.lease_seconds,
                    assignments=orders,
                    stops=list(self._stops.values()),
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._rung.wait()

    def take_reports(self, batch: ReportBatch) -> ReportAnswer:
        """Keep what is new; a poisoned allocation spoils its whole batch."""
        rejected = []
        for report in batch.reports:
            if report.allocation_id in self.poison:
                raise FakeProblem(ErrorCode.BODY_INVALID)
            if report.epoch != 3:
                code = ErrorCode.ALLOCATION_EPOCH_STALE
                rejected.append(
                    RejectedReport(
                        allocation_id=report.allocation_id, sequence=report.sequence, code=code, detail=code.meaning
                    )
                )
            elif report not in self.reports:
                self.reports.append(report)
                self.delays_ms.append(monotonic_ms() - report.at_monotonic_ms)
            self._orders.pop(report.allocation_id, None)
            if report.kind in (ReportKind.RELEASED, ReportKind.REFUSED):
                self._stops.pop(report.allocation_id, None)
        return ReportAnswer(server_at=datetime.now(UTC), accepted=len(batch.reports) - len(rejected), rejected=rejected)

    def take_log(self, chunk: LogChunk) -> LogAnswer:
        """Append what continues the copy."""
        self.log_chunks.append(chunk)
        kept = self.logs.setdefault(chunk.allocation_id, bytearray())
        data = base64.b64decode(chunk.data_base64)
        if chunk.offset > len(kept) and not chunk.cut:
            raise FakeProblem(ErrorCode.LOG_OFFSET_GAP)
        kept += data[len(kept) - chunk.offset :]
        if chunk.ended:
            self.ended_logs.add(chunk.allocation_id)
        return LogAnswer(next_offset=len(kept))

    def _pool(self) -> PoolView:
        return PoolView(
            pool_id=self.pool_id,
            name="main",
            priority=0,
            selector=NodeSelector(),
            performance_class="standard",
            region=None,
            zone=None,
            isolation=PoolIsolation.SHARED,
            tenant_id=None,
            device_sharing=DeviceSharing.SAME_TENANT,
            allow_oversubscription=False,
            allow_shared_users=True,
            unreachable_after_seconds=30,
            lease_seconds=int(self.lease_seconds),
            stop_grace_seconds=30,
            reference_task_milli=1000,
            labels={},
            created_at=datetime.now(UTC),
            generation=1,
        )


def _routes(plane: FakeControlPlane) -> FastAPI:
    app = FastAPI()
    _add_failures(app, plane)
    _add_identity(app, plane)
    _add_telling(app, plane)
    _add_work(app, plane)
    return app


def _add_failures(app: FastAPI, plane: FakeControlPlane) -> None:

    @app.middleware("http")
    async def be_away(request: Request, call_next: RequestResponseEndpoint) -> Response:
        plane.refused_away += plane.away
        return Response("away", 503) if plane.away else await call_next(request)

    @app.exception_handler(FakeProblem)
    async def on_problem(request: Request, error: FakeProblem) -> JSONResponse:
        code = error.code
        body = Problem(type=code, title=code.meaning, status=code.status, code=code, detail=error.detail, errors=[])
        return JSONResponse(body.model_dump(mode="json"), code.status, media_type="application/problem+json")


def _add_identity(app: FastAPI, plane: FakeControlPlane) -> None:
    @app.post("/v1/nodes/join", status_code=201)
    async def join(body: JoinRequest) -> JoinAnswer:
        if body.token != JOIN_TOKEN:
            raise FakeProblem(ErrorCode.JOIN_TOKEN_INVALID, "No such join token; ask an operator for one.")
        plane.joins += 1
        node_id = plane.node_ids.setdefault(body.public_key, NodeId.new())
        return JoinAnswer(node_id=node_id, name=body.name, pool_id=plane.pool_id)

    @app.post("/v1/agent/challenges", status_code=201)
    async def challenge(body: ChallengeRequest) -> ChallengeAnswer:
        if body.node_id not in plane.node_ids.values():
            raise FakeProblem(ErrorCode.NODE_NOT_FOUND)
        return ChallengeAnswer(nonce=f"nonce-{plane.incarnation}", expires_at=datetime.now(UTC))

    @app.post("/v1/agent/sessions", status_code=201)
    async def session(body: SessionRequest) -> SessionAnswer:
        key = next(key for key, node_id in plane.node_ids.items() if node_id == body.node_id)
        verifier = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key + "="))
        try:
            message = f"millpond-session:{body.node_id}:nonce-{plane.incarnation}".encode()
            verifier.verify(base64.urlsafe_b64decode(body.signature + "=="), message)
        except InvalidSignature as error:
            raise FakeProblem(ErrorCode.SIGNATURE_INVALID) from error
        plane.incarnation += 1
        return plane.answer_session()

    @app.post("/v1/agent/sessions/renew")
    async def renew(request: Request, body: SessionRenewal) -> SessionAnswer:
        plane.judge(request)
        plane.renewals += 1
        return plane.answer_session()


def _add_telling(app: FastAPI, plane: FakeControlPlane) -> None:
    @app.put("/v1/agent/inventory", status_code=204)
    async def inventory(request: Request, body: InventoryReport) -> Response:
        plane.judge(request)
        plane.inventories.append(body)
        return Response(status_code=204)

    @app.post("/v1/agent/ready", status_code=204)
    async def ready(request: Request, body: ReadyReport) -> Response:
        plane.judge(request)
        plane.ready.append(body)
        plane.node_state = NodeState.READY
        return Response(status_code=204)

    @app.post("/v1/agent/heartbeat")
    async def heartbeat(request: Request, body: Heartbeat) -> HeartbeatAnswer:
        plane.judge(request)
        plane.heartbeats.append(body)
        asked, plane.send_inventory = plane.send_inventory, False
        return HeartbeatAnswer(
            server_at=datetime.now(UTC),
            send_inventory=asked,
            state=plane.node_state,
            heartbeat_seconds=plane.heartbeat_seconds,
            takes_series=plane.takes_series,
        )


def _add_work(app: FastAPI, plane: FakeControlPlane) -> None:
    @app.post("/v1/work/poll")
    async def poll(request: Request, body: PollRequest) -> PollAnswer:
        plane.judge(request)
        return await plane.answer_poll(body)

    @app.post("/v1/work/reports")
    async def reports(request: Request, body: ReportBatch) -> ReportAnswer:
        plane.judge(request)
        return plane.take_reports(body)

    @app.post("/v1/work/logs")
    async def logs(request: Request, body: LogChunk) -> LogAnswer:
        plane.judge(request)
        return plane.take_log(body)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the test run


@contextlib.asynccontextmanager
async def serving(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serves an ASGI application on loopback, in this event loop; gives its base URL."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
