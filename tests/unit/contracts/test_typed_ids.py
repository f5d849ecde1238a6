"""Typed ids: what is written is read back, and nothing else is taken for an id."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.ids import JobId, TaskId

pytestmark = pytest.mark.unit

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@given(st.integers(0, 2**128 - 1))
def test_id_when_written_then_crockford_digits_of_its_number_and_read_back(number: int) -> None:
    digits = [ALPHABET[number >> 5 * place & 31] for place in reversed(range(26))]
    written = str(JobId(int=number))
    assert written == "job_" + "".join(digits)
    assert JobId.parse(written) == JobId(int=number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job_",
        "task_" + "0" * 26,
        "job_" + "0" * 25,
        "job_" + "0" * 27,
        "job_" + "i" * 26,
        "job_" + "A" * 26,
        "job_" + "_" * 26,
        "job_ " + "0" * 25,
        "job_" + "0" * 25 + "\n",
        "job_" + "٠" * 26,
        "job_" + "z" * 26,
    ],
)
def test_parse_when_not_an_id_then_refused(text: str) -> None:
    with pytest.raises(ValueError, match="job_"):
        JobId.parse(text)


def test_ids_when_made_by_the_hundred_then_each_is_later_than_every_earlier_one() -> None:
    made = [JobId.new(), *JobId.new_many(300), JobId.new(), *JobId.new_many(0), *JobId.new_many(2)]
    assert len(made) == 304
    assert made == sorted(set(made))
    assert {one.version for one in made} == {7}
    assert {one.variant for one in made} == {"specified in RFC 4122"}


def test_id_when_copied_from_a_row_then_equal_and_of_its_type() -> None:
    row = JobId.new()
    copy = TaskId.of(row)
    assert copy == row
    assert hash(copy) == hash(row)
    assert str(copy) == f"task_{str(row).removeprefix('job_')}"
    assert pickle.loads(pickle.dumps(copy)) == copy
