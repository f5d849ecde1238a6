"""Tokens prove what they say or nothing; revoked keys, changed roles and inactive tenants are refused."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OKPKey

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.ids import ApiKeyId, NodeId, PoolId, TenantId
from millpond_kernel.auth import DenySet
from millpond_kernel.tenancy import Principal
from millpond_kernel.tokens import TokenInvalid, TokenIssuer, verify_token

pytestmark = pytest.mark.unit

KEY, OTHER = OKPKey.generate_key("Ed25519"), OKPKey.generate_key("Ed25519")
KEYS = {"quota-1": KEY, "registry-1": OTHER}
TENANT, API_KEY = TenantId.new(), ApiKeyId.new()


def token(kid: str = "quota-1", key: OKPKey = KEY, algorithm: str = "Ed25519", **claims: Any) -> str:
    payload = {"iss": "quota", "sub": "x", "exp": time.time() + 60, "role": "viewer", **claims}
    return jwt.encode({"alg": algorithm, "kid": kid}, payload, key, algorithms=[algorithm])


def test_token_when_signed_and_current_then_its_claims() -> None:
    principal = verify_token(token(tenant=str(TENANT), key=KEY), KEYS)
    assert (principal.role, principal.tenant_id, principal.subject) == (Role.VIEWER, TENANT, "x")
    text, expires = TokenIssuer("registry", "registry-1", OTHER).issue(
        "node", {"role": "node", "node": str(NodeId.new()), "pool": str(PoolId.new()), "inc": 3}, 10
    )
    node = verify_token(text, KEYS)
    assert (node.role, node.incarnation, node.expires_at) == (Role.NODE, 3, expires)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": time.time() - 1}, "expired"),
        ({"exp": "soon"}, "signature"),
        ({"iss": "registry"}, "issuer"),
        ({"role": "node"}, "may not give"),
        ({"role": "king"}, "not complete"),
        ({"tenant": "ten_x"}, "not complete"),
        ({"kid": "registry-1"}, "signature"),
        ({"kid": "registry-1", "key": OTHER, "iss": "registry", "role": "operator"}, "may not give"),
        ({"kid": "registry-1", "key": OTHER}, "issuer"),
    ],
)
def test_token_when_it_says_what_its_issuer_may_not_then_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenInvalid, match=reason):
        verify_token(token(**claims), KEYS)


def test_token_when_its_key_is_unknown_then_the_refusal_names_it() -> None:
    with pytest.raises(TokenInvalid) as refused:
        verify_token(token(kid="quota-2"), KEYS)
    assert refused.value.unknown_kid == "quota-2"


@given(st.text(max_size=200) | st.from_regex(r"\A[A-Za-z0-9_-]{0,80}\.[A-Za-z0-9_-]{0,80}\.[A-Za-z0-9_-]{0,90}\Z"))
def test_token_when_it_is_rubbish_then_refused(text: str) -> None:
    with pytest.raises(TokenInvalid):
        verify_token(text, KEYS)


@given(st.integers(0, 300), st.sampled_from("Aa0_-."))
def test_token_when_a_character_is_changed_then_refused_or_the_same(place: int, character: str) -> None:
    good = token(tenant=str(TENANT))
    place %= len(good)
    changed = good[:place] + character + good[place + 1 :]
    try:
        principal = verify_token(changed, KEYS)
    except TokenInvalid:
        return
    # The last character of a base 64 part carries bits that mean nothing.
    assert principal == verify_token(good, KEYS)


def test_deny_set_when_fed_then_it_refuses_the_key_the_old_role_and_the_tenant() -> None:
    deny = DenySet()
    viewer = Principal(Role.VIEWER, "x", 0.0, tenant_id=TENANT, api_key_id=API_KEY)
    admin = Principal(Role.TENANT_ADMIN, "x", 0.0, tenant_id=TENANT, api_key_id=API_KEY)
    assert not deny.denies(viewer)
    deny.change_role(str(API_KEY), Role.TENANT_ADMIN)
    assert deny.denies(viewer)
    assert not deny.denies(admin)
    deny.set_tenant(str(TENANT), active=False)
    assert deny.denies(admin)
    deny.set_tenant(str(TENANT), active=True)
    assert not deny.denies(admin)
    deny.revoke(str(API_KEY))
    assert deny.denies(admin)
    assert not deny.denies(Principal(Role.NODE, "node", 0.0))
