"""Stacks for system tests: stopped in teardown whatever happened, with nothing left behind."""

from collections.abc import Iterator

import pytest

from tests.system.stack import Stack


@pytest.fixture
def compact() -> Iterator[Stack]:
    """A compact stack that runs."""
    yield from _running(split=False)


@pytest.fixture
def split() -> Iterator[Stack]:
    """A split stack that runs."""
    yield from _running(split=True)


@pytest.fixture(scope="module")
def shared_split() -> Iterator[Stack]:
    """A split stack for all tests of a module that leave it as they found it."""
    yield from _running(split=True)


@pytest.fixture(scope="module")
def shared_compact() -> Iterator[Stack]:
    """A compact stack for all tests of a module that leave it as they found it."""
    yield from _running(split=False)


def _running(*, split: bool) -> Iterator[Stack]:
    stack = Stack.make(split=split)
    try:
        stack.start()
        yield stack
    finally:
        stack.close()
