"""The command line's packings: what an operator is told before the setting of a pool changes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from millpond_contracts.bodies.packings import PackingSetting, PackingSpec, PackingState, PackingView
from millpond_contracts.ids import PackingId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import POOL

pytestmark = pytest.mark.unit

PACKING = PackingId.new()


def packing(**changes: Any) -> PackingView:
    view = PackingView(
        packing_id=PACKING,
        pool_id=POOL,
        state=PackingState.READY,
        setting=PackingSetting(quantum_milli=40, core_price=2000, device_price=0),
        gain_points=0.523,
        created_at=datetime(2031, 5, 1, 8, tzinfo=UTC),
        generation=3,
    )
    return view.model_copy(update=changes)


def test_packing_when_proposed_then_the_pool_is_sent() -> None:
    api = FakeApi().on("POST", "/v1/packings", packing(state=PackingState.QUEUED, setting=None))
    ran = run(api, "packing", "propose", str(POOL))
    (request,) = api.asked("POST", "/v1/packings")
    assert PackingSpec.model_validate_json(request.content).pool_id == POOL
    assert (ran.code, f"packing show {PACKING}" in ran.out) == (0, True)


def test_packing_when_shown_then_gain_and_age_are_told() -> None:
    stale = packing(demand_change_permille=305, is_stale=True)
    for view, said in (
        (packing(), "ready: quantum 40, core 2000, device 0, +0.52 points"),
        (stale, "30.5 % of what comes changed since"),
        (packing(state=PackingState.FAILED, setting=None, error="No nodes."), "failed: No nodes."),
    ):
        ran = run(FakeApi().on("GET", f"/v1/packings/{PACKING}", view), "packing", "show", str(PACKING))
        assert said in " ".join(ran.out.split())


def test_packing_when_accepted_or_withdrawn_then_that_is_asked_for() -> None:
    for command in ("accept", "withdraw"):
        api = FakeApi().on("POST", f"/v1/packings/{PACKING}/{command}", packing())
        assert run(api, "packing", command, str(PACKING)).code == 0
        assert len(api.asked("POST", f"/v1/packings/{PACKING}/{command}")) == 1
    assert run(FakeApi(), "packing", "accept", "x").code == 2
    api = FakeApi().on("GET", "/v1/packings", page([packing()]))
    assert "+0.52" in run(api, "packing", "list", str(POOL)).out
