"""Small forms that travel: cursors, stream replies, strict JSON, the audit hash, SQL scripts."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_kernel.audit import audit_hash
from millpond_kernel.border import MAX_JSON_DEPTH, check_json
from millpond_kernel.generation import check_if_match, etag
from millpond_kernel.pagination import PageRequest, decode_cursor, encode_cursor
from millpond_kernel.problem import ProblemError
from millpond_kernel.streams import stream_fields
from millpond_kernel.tables import run_script

pytestmark = pytest.mark.unit


@given(st.uuids() | st.integers(-(2**63), 2**63) | st.text(max_size=60))
def test_cursor_when_written_and_read_then_the_same(position: UUID | int | str) -> None:
    if isinstance(position, str):
        try:
            position.encode()
        except UnicodeEncodeError:
            return
    assert decode_cursor(encode_cursor(position)) == position


@given(st.text(max_size=80))
def test_cursor_when_invented_then_refused(text: str) -> None:
    with pytest.raises(ProblemError):
        decode_cursor(text)


def test_cursor_when_it_is_of_another_list_then_refused() -> None:
    with pytest.raises(ProblemError):
        PageRequest(10, 7).after_uuid()
    with pytest.raises(ProblemError):
        PageRequest(10, "a").after_int()
    with pytest.raises(ProblemError):
        PageRequest(10, 7).after_text()


@pytest.mark.parametrize(
    "reply",
    [
        [[b"s", [(b"1-0", {b"e": b"x"}), (b"2-0", {b"e": b"y"})]]],
        {b"s": [[(b"1-0", {b"e": b"x"}), (b"2-0", {b"e": b"y"})]]},
        {b"s": [(b"1-0", {b"e": b"x"}), (b"2-0", {b"e": b"y"})]},
    ],
)
def test_stream_reply_when_in_either_protocol_then_the_same_fields(reply: Any) -> None:
    assert stream_fields(reply) == [{b"e": b"x"}, {b"e": b"y"}]


@pytest.mark.parametrize("reply", [None, [], {}])
def test_stream_reply_when_empty_then_nothing(reply: Any) -> None:
    assert stream_fields(reply) == []


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def refuses(check: Callable[[], None]) -> bool:
    try:
        check()
    except ProblemError:
        return True
    return False


@given(JSON_VALUES)
def test_json_when_strict_then_passed(value: Any) -> None:
    assert not refuses(lambda: check_json(json.dumps(value).encode()))


@pytest.mark.parametrize("body", [rb'["\u0000"]', rb'{"\ud800": 1}', rb'{"a": [["\udfff"]]}'])
def test_json_when_text_holds_what_no_database_does_then_refused(body: bytes) -> None:
    assert refuses(lambda: check_json(body))


@pytest.mark.parametrize("depth", [1, MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1])
def test_json_when_nested_then_refused_past_the_bound(depth: int) -> None:
    body = b'{"a":' * (depth - 1) + b"[1]" + b"}" * (depth - 1)
    assert refuses(lambda: check_json(body)) == (depth > MAX_JSON_DEPTH)
    listed = b"[0," * depth + b"{}" + b"]" * depth
    assert refuses(lambda: check_json(listed)) == (depth >= MAX_JSON_DEPTH)


def test_if_match_when_compared_then_any_of_the_tags_counts() -> None:
    assert not refuses(lambda: check_if_match(f"{etag(1)}, {etag(2)}", 2))
    assert not refuses(lambda: check_if_match("*", 2))
    assert refuses(lambda: check_if_match("2", 2))


def test_audit_hash_when_any_field_changes_then_another() -> None:
    row = {"seq": 1, "actor": "a", "before": {"b": 1, "a": 2}}
    first = audit_hash(b"", row)
    assert first == audit_hash(b"", {"before": {"a": 2, "b": 1}, "actor": "a", "seq": 1})
    assert len({first, audit_hash(b"x", row), audit_hash(b"", {**row, "seq": 2}), audit_hash(b"", {})}) == 4


def test_script_when_run_then_one_statement_each_and_quotes_hold() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def execute(self, sqltext: str) -> None:
            self.seen.append(" ".join(sqltext.split()))

    recorder = Recorder()
    run_script(recorder, "SELECT 1;\nCREATE FUNCTION f() AS $$\nBEGIN\n  x;\nEND;\n$$;\nSELECT 2;\n")
    assert recorder.seen == ["SELECT 1;", "CREATE FUNCTION f() AS $$ BEGIN x; END; $$;", "SELECT 2;"]
    with pytest.raises(ValueError, match="inside a statement"):
        run_script(recorder, "SELECT 1;\nSELECT")
