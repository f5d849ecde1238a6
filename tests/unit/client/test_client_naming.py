"""Names are accepted where ids are."""

import pytest

from millpond.client.errors import InvalidRequest, NotFound
from millpond.client.naming import find_id
from millpond_contracts.bodies.tenants import VirtualPoolView
from millpond_contracts.ids import JobId, PoolId, TenantId, VirtualPoolId
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import TENANT, VIRTUAL_POOL, job, tenant, virtual_pool

pytestmark = pytest.mark.unit


def test_find_id_when_text_is_an_id_then_it_is_read() -> None:
    wanted = TenantId.new()
    assert find_id(TenantId, str(wanted)) == wanted
    assert find_id(TenantId, wanted) is wanted


@pytest.mark.parametrize("name", ["acme", "ten_acme", "job_of_the_day", "a" * 30, "x_" + "0" * 26])
def test_find_id_when_text_is_a_name_then_none(name: str) -> None:
    assert find_id(TenantId, name) is None


def test_find_id_when_it_is_another_kind_of_id_then_refused() -> None:
    with pytest.raises(InvalidRequest, match="starts with 'ten_'"):
        find_id(TenantId, str(PoolId.new()))
    with pytest.raises(InvalidRequest, match="starts with 'ten_'"):
        find_id(TenantId, PoolId.new())


def test_get_when_a_name_is_unknown_then_says_which() -> None:
    api = FakeApi().on("GET", "/v1/tenants", page([]))
    with pytest.raises(NotFound, match="no tenant 'acme'"):
        api.client().tenants.get("acme")
    assert dict(api.requests[0].url.params)["name"] == "acme"


def test_get_when_a_name_is_ambiguous_then_names_each() -> None:
    both = [virtual_pool(), virtual_pool(virtual_pool_id=VirtualPoolId.new())]
    api = FakeApi().on("GET", "/v1/virtual-pools", page(both))
    with pytest.raises(InvalidRequest) as caught:
        api.client().virtual_pools.get("main")
    assert all(str(each.virtual_pool_id) in caught.value.detail for each in both)


def test_find_virtual_pool_when_none_is_named_then_the_only_one() -> None:
    api = FakeApi().on("GET", "/v1/virtual-pools", page([virtual_pool()]))
    assert api.client().find_virtual_pool().virtual_pool_id == VIRTUAL_POOL


@pytest.mark.parametrize(
    ("found", "word"), [([], "limit create"), ([virtual_pool("a"), virtual_pool("b")], "b (vpool_")]
)
def test_find_virtual_pool_when_there_is_not_one_then_says_what_to_do(found: list[VirtualPoolView], word: str) -> None:
    api = FakeApi().on("GET", "/v1/virtual-pools", page(found))
    with pytest.raises(InvalidRequest) as caught:
        api.client().find_virtual_pool()
    assert word in caught.value.detail


def test_find_virtual_pool_when_a_tenant_is_named_then_asks_for_its_own() -> None:
    api = FakeApi().on("GET", "/v1/tenants", page([tenant()])).on("GET", "/v1/virtual-pools", page([virtual_pool()]))
    api.client().find_virtual_pool("main", tenant="acme")
    (request,) = api.asked("GET", "/v1/virtual-pools")
    assert dict(request.url.params) == {"limit": "200", "tenant_id": str(TENANT), "name": "main"}


def test_job_id_when_several_have_the_name_then_the_newest() -> None:
    old, new = job("hello"), job("hello")
    api = FakeApi().on("GET", "/v1/jobs", page([new, old], "more"))
    assert api.client().jobs.id_of("hello") == new.job_id
    (request,) = api.requests
    assert dict(request.url.params) == {"limit": "200", "name": "hello", "newest_first": "true"}


def test_job_id_when_unknown_then_says_which() -> None:
    api = FakeApi().on("GET", "/v1/jobs", page([job("else")]))
    with pytest.raises(NotFound, match="no job 'hello'"):
        api.client().jobs.id_of("hello")


def test_job_id_when_given_as_view_or_id_then_nothing_is_asked() -> None:
    api = FakeApi()
    view, fresh = job(), JobId.new()
    assert api.client().jobs.id_of(view) == view.job_id
    assert api.client().jobs.id_of(str(fresh)) == fresh
    assert api.requests == []
