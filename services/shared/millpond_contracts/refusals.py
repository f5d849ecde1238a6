"""What Pydantic says of a value that is refused, each fault once."""

from collections.abc import Sequence

from pydantic_core import ErrorDetails


def name_faults(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The errors without those that only follow from others.

    A list of which no item is right counts as empty, and is then called too short as well.
    """
    places = [error["loc"] for error in errors]
    return [error for error in errors if error["type"] != "too_short" or not _has_fault_inside(error["loc"], places)]


def _has_fault_inside(place: tuple[int | str, ...], places: Sequence[tuple[int | str, ...]]) -> bool:
    return any(len(other) > len(place) and other[: len(place)] == place for other in places)
