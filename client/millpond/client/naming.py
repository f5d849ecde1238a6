"""Names where ids are wanted: people say `acme`, the API says `ten_…`."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from millpond.client.errors import InvalidRequest, NotFound
from millpond_contracts.ids import TypedId

_PREFIXES = frozenset(each.prefix for each in TypedId.__subclasses__())
_ID_LENGTH = 26

Thing = TypeVar("Thing")
Id = TypeVar("Id", bound=TypedId)


def find_id(kind: type[Id], text: str | TypedId) -> Id | None:
    """The id when `text` is one, None when it is a name.

    Raises:
        InvalidRequest: it is another kind of id, or looks like an id of this kind and is none.
    """
    if isinstance(text, kind):
        return text
    prefix, separator, body = str(text).partition("_")
    looks_like_id = bool(separator) and len(body) == _ID_LENGTH and prefix in _PREFIXES
    if not looks_like_id and not isinstance(text, TypedId):
        return None
    try:
        return kind.parse(str(text))
    except ValueError as error:
        raise InvalidRequest(str(error), code="client.id.invalid") from error


def pick_one(noun: str, name: str, found: Iterable[Thing], tell_apart: Callable[[Thing], str]) -> Thing:
    """The only thing of that name.

    Raises:
        NotFound: there is none.
        InvalidRequest: there are several; the message names each.
    """
    things = list(found)
    if not things:
        raise NotFound(f"there is no {noun} {name!r} that these credentials may see", code="client.name.unknown")
    if len(things) > 1:
        several = ", ".join(tell_apart(thing) for thing in things[:10])
        raise InvalidRequest(
            f"{len(things)} {noun}s are called {name!r}: {several}; name one of these", code="client.name.ambiguous"
        )
    return things[0]
