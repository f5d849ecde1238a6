"""The scenarios' expectations can fail: what they let pass and what they do not."""

from typing import Any

import httpx
import pytest

from tests.scenarios.runner import differences, differences_of

pytestmark = pytest.mark.unit

ITEMS = [{"name": "a", "size": 1}, {"name": "b", "size": 2}]


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        ({"name": "a"}, ITEMS[0], True),
        ({"name": "b"}, ITEMS[0], False),
        ({"colour": None}, ITEMS[0], False),
        ([{"name": "a"}, {"name": "b"}], ITEMS, True),
        ([{"name": "a"}], ITEMS, False),
        ([{"name": "b"}, {"name": "a"}], ITEMS, False),
        ([], ITEMS, False),
        ({"$contains": {"size": 2}}, ITEMS, True),
        ({"$contains": {"size": 3}}, ITEMS, False),
        ({"$lacks": {"size": 3}}, ITEMS, True),
        ({"$lacks": {"size": 2}}, ITEMS, False),
        ("<any>", 0, True),
        ("<any>", None, False),
        ("<~ ^a+$>", "aaa", True),
        ("<~ ^a+$>", "b", False),
        ("<~ 1>", 1, False),
        (1, True, False),
        ("1", 1, False),
        ({}, None, False),
        (None, None, True),
    ],
)
def test_differences_when_compared_then_empty_only_where_it_fits(wanted: Any, found: Any, fits: bool) -> None:
    assert (differences(wanted, found, "body") == []) == fits


def test_answers_when_unlike_the_expectation_then_each_part_is_named() -> None:
    answer = httpx.Response(200, headers={"ETag": '"1"'}, text="some text")
    expect = {"status": 201, "headers": {"etag": '"2"'}, "text": ["other"], "no_text": ["some"]}
    assert [line.partition(":")[0] for line in differences_of(expect, answer)] == [
        "status",
        "header etag",
        "text",
        "text",
    ]
    assert differences_of({"headers": {"etag": '"1"'}, "text": ["some"]}, answer) == []
