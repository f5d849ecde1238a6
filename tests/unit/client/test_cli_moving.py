"""Moves on the command line: what is told, what is ordered, and a pool's own rules."""

import pytest

from millpond_contracts.bodies.moves import (
    MovedView,
    MoveOrderSpec,
    MoveOrderState,
    MoveOrderView,
    MovePlanView,
    MovePolicy,
    MoveResult,
    MoveView,
)
from millpond_contracts.bodies.pools import PoolSpec
from millpond_contracts.ids import AllocationId, JobId, MoveOrderId, NodeId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import NODE, NOW, POOL, job, pool

pytestmark = pytest.mark.unit

MOVE = MoveView(
    allocation_id=AllocationId.new(),
    job_id=JobId.new(),
    job="many",
    group="main",
    index=3,
    from_node_id=NODE,
    from_node="rack-7",
    to_node_id=NodeId.new(),
    to_node="rack-8",
    device_milli=1000,
    lost_seconds=900,
)
WAITS = job()
PLAN = MovePlanView(
    as_of=NOW,
    job_id=WAITS.job_id,
    pool_id=POOL,
    tasks=1,
    outcome="moves",
    message="these moves would make room",
    largest_free_block=2,
    fragmentation_permille=1000,
    threshold_permille=300,
    max_moves=8,
    moves=[MOVE],
    nodes=["rack-7"],
    gain=10,
    cost=5,
    plan="0123456789abcdef",
)
MOVES = f"/v1/jobs/{WAITS.job_id}/moves"


def order(state: MoveOrderState, result: MoveResult | None = None, message: str | None = None) -> MoveOrderView:
    moved = MovedView(
        allocation_id=MOVE.allocation_id,
        job_id=MOVE.job_id,
        from_node_id=MOVE.from_node_id,
        to_node_id=MOVE.to_node_id,
        lost_seconds=900,
        result=result,
        ended_at=None,
    )
    return MoveOrderView(
        move_order_id=ORDER,
        job_id=WAITS.job_id,
        pool_id=POOL,
        plan="0123456789abcdef",
        max_moves=8,
        cool_down_seconds=600,
        ordered_by="operator",
        state=state,
        message=message,
        requested_at=NOW,
        settled_at=None if state in (MoveOrderState.REQUESTED, MoveOrderState.MOVING) else NOW,
        moves=[moved],
    )


ORDER = MoveOrderId.new()


def test_move_when_ordered_then_the_plan_that_was_seen_is_named_and_each_result_told() -> None:
    api = FakeApi().on("GET", MOVES, PLAN).on("POST", MOVES, order(MoveOrderState.REQUESTED))
    done = page([order(MoveOrderState.DONE, MoveResult.MOVED)])
    api.on("GET", f"/v1/jobs/{WAITS.job_id}/move-orders", done)
    ran = run(api, "move", str(WAITS.job_id), "--max-moves", "8")
    assert (ran.code, ran.out.strip()) == (0, "many main/3, from rack-7: runs on rack-8 now")
    (asked,) = api.asked("POST", MOVES)
    assert MoveOrderSpec.model_validate_json(asked.content) == MoveOrderSpec(plan="0123456789abcdef")


def test_move_when_refused_or_there_is_nothing_to_move_then_says_why_and_fails() -> None:
    api = FakeApi().on("GET", MOVES, PLAN)
    api.on("POST", MOVES, order(MoveOrderState.REFUSED, message="other tasks would move by now"))
    ran = run(api, "move", str(WAITS.job_id))
    assert (ran.code, ran.out.strip()) == (1, "nothing was moved: other tasks would move by now")
    none = PLAN.model_copy(
        update={"plan": None, "outcome": "no_way", "message": "no moves would make room", "moves": []}
    )
    ran = run(FakeApi().on("GET", MOVES, none), "move", str(WAITS.job_id))
    assert (ran.code, ran.err_words) == (1, "nothing is moved: no moves would make room")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--per-hour", "4", "--wait", "5m"], MovePolicy(moves_per_hour=4, wait_seconds=300)),
        (["--fragmented", "50", "--max-loss", "20"], MovePolicy(threshold_permille=500, max_loss_percent=20)),
        (["--off"], None),
    ],
)
def test_pool_moves_when_given_then_the_pool_keeps_all_else(arguments: list[str], expected: MovePolicy | None) -> None:
    known = pool().model_copy(update={"moves": MovePolicy()})
    api = FakeApi().on("GET", "/v1/pools", page([known])).on("PUT", f"/v1/pools/{POOL}", known)
    assert run(api, "pool", "moves", "default", *arguments).code == 0
    (asked,) = api.asked("PUT", f"/v1/pools/{POOL}")
    sent = PoolSpec.model_validate_json(asked.content)
    assert (sent.name, sent.moves) == ("default", expected)
