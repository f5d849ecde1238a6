"""What a person may choose about a stack on this machine."""

from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 7070


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """Choices of `millpond up`.

    Attributes:
        name: Tells stacks of one user apart.
        data_folder: Where the stack keeps everything; None = the usual place.
        port: Port of the one base URL.
        listen: Address that the base URL listens on.
        split: Every service's HTTP and worker process on its own.
        database_url: Owner's URL of a PostgreSQL to use instead of the embedded one.
        redis_url: URL of a Redis or Valkey to use instead of the embedded one.
        join_node: Whether this machine joins as a node.
        simulate: What simulated nodes there are: files, folders, or `openb:N`; none = no process for them. The folder
            `fleet/orders` of the stack is then looked at as well.
        stop_tasks: Whether the node agent stops its tasks when the stack stops; else they run on and are adopted.
        settings: Further environment variables of the services, such as MILLPOND_LOG_LEVEL.
    """

    name: str = "default"
    data_folder: Path | None = None
    port: int = DEFAULT_PORT
    listen: str = "127.0.0.1"
    split: bool = False
    database_url: str | None = None
    redis_url: str | None = None
    join_node: bool = True
    simulate: tuple[str, ...] = ()
    stop_tasks: bool = False
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The base URL for clients on this machine."""
        host = "127.0.0.1" if self.listen in ("0.0.0.0", "::", "127.0.0.1") else self.listen
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
