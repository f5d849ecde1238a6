"""Thresholds and loans of pools on the command line."""

from datetime import timedelta

import pytest

from millpond_contracts.bodies.loans import LoanState, LoanView, ShortageView, Threshold
from millpond_contracts.bodies.pools import PoolSpec
from millpond_contracts.ids import LoanId, PoolId
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import NODE, NOW, POOL, pool

pytestmark = pytest.mark.unit

DONOR = pool("spare").model_copy(update={"pool_id": PoolId.new()})
LOAN = LoanView(
    loan_id=LoanId.new(),
    node_id=NODE,
    node_name="rack-7",
    from_pool_id=DONOR.pool_id,
    to_pool_id=POOL,
    threshold="device/t4",
    amount=2000,
    state=LoanState.LENT,
    state_since=NOW,
    reason="pool default has 0 devices of t4 available, below 1 devices of t4",
    asked_at=NOW,
    arrived_at=NOW,
    due_at=NOW + timedelta(hours=4),
    generation=2,
)


def api_with(*thresholds: Threshold) -> FakeApi:
    """An API that knows the pool `default`, asked for first, and the pool `spare`."""
    known = pool().model_copy(update={"thresholds": thresholds})
    return FakeApi().on("GET", "/v1/pools", page([known]), page([DONOR])).on("PUT", f"/v1/pools/{POOL}", known)


def replaced(api: FakeApi, *arguments: str) -> PoolSpec:
    ran = run(api, "pool", "threshold", "default", *arguments)
    assert ran.code == 0, ran.err_words
    (request,) = api.asked("PUT", f"/v1/pools/{POOL}")
    return PoolSpec.model_validate_json(request.content)


def test_threshold_when_given_then_the_pool_keeps_all_else() -> None:
    other = Threshold(resource="cpu", low=1000)
    sent = replaced(
        api_with(other),
        *("--flavor", "t4", "--low", "1", "--enough", "2.5", "--donor", "spare", "--donor-keeps", "3"),
        *("--max-nodes", "2", "--return-after", "2h", "--grace", "10m"),
    )
    kept, added = sent.thresholds
    assert (sent.name, kept) == ("default", other)
    assert (added.key, added.low, added.target, added.donor_keeps) == ("device/t4", 1000, 2500, 3000)
    assert (added.donors, added.max_nodes) == ((DONOR.pool_id,), 2)
    assert (added.return_after_seconds, added.return_grace_seconds) == (7200, 600)


def test_threshold_when_given_again_then_replaced_and_when_removed_then_gone() -> None:
    before = Threshold(resource="memory", low=1024)
    (changed,) = replaced(api_with(before), "--resource", "memory", "--low", "2GiB").thresholds
    assert changed.low == 2048
    assert replaced(api_with(before), "--resource", "memory", "--remove").thresholds == ()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--flavor", "t4"], "short"),
        (["--low", "2"], "flavor"),
        (["--resource", "cpu", "--low", "2", "--enough", "1"], "enough"),
        (["--resource", "memory", "--low", "2"], "GiB"),
    ],
)
def test_threshold_when_wrong_then_usage_and_nothing_is_sent(arguments: list[str], word: str) -> None:
    api = api_with()
    ran = run(api, "pool", "threshold", "default", *arguments)
    assert (ran.code, api.asked("PUT", f"/v1/pools/{POOL}")) == (2, [])
    assert word in ran.err_words


def test_loans_when_listed_then_who_lent_what_why_and_until_when() -> None:
    shortage = ShortageView(pool_id=POOL, threshold="device/t4", low=1000, available=0, since=NOW)
    api = (
        FakeApi()
        .on("GET", "/v1/pools", page([pool()]), page([pool(), DONOR]))
        .on("GET", f"/v1/pools/{POOL}/shortages", page([shortage]))
        .on("GET", f"/v1/pools/{POOL}/loans", page([LOAN]))
    )
    shown = run(api, "pool", "loans", "default")
    assert shown.code == 0
    for word in ("rack-7", "spare", "default", "2 devices", "lent", "below 1 devices", "short of device/t4"):
        assert word in shown.out


def test_return_when_asked_then_with_its_deadline() -> None:
    path = f"/v1/pools/{POOL}/loans/{LOAN.loan_id}/return"
    api = FakeApi().on("GET", "/v1/pools", page([pool()])).on("POST", path, LOAN)
    assert run(api, "pool", "return", "default", str(LOAN.loan_id), "--deadline", "5m").code == 0
    (request,) = api.asked("POST", path)
    assert request.content == b'{"deadline_seconds":300}'
    assert run(api, "pool", "return", "default", "rack-7").code == 2
