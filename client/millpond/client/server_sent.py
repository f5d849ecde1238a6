"""Server-sent events, line by line.

Source: WHATWG HTML, "Server-sent events", interpreting an event stream.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerSent:
    """One event: its kind, and its data with lines joined."""

    kind: str
    data: str


@dataclass(slots=True)
class EventReading:
    """What was read of the next event so far."""

    kind: str = "message"
    data: list[str] = field(default_factory=list)

    def take(self, line: str) -> ServerSent | None:
        """The event that this line ends, if it ends one."""
        if not line:
            ended = ServerSent(self.kind, "\n".join(self.data)) if self.data else None
            self.kind, self.data = "message", []
            return ended
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self.kind = value
        elif name == "data":
            self.data.append(value)
        return None
