"""What a fleet shall consist of: files of `FleetFile`, alone or in a folder, read again whenever they change.

A file that cannot be read or is wrong says so once, and what it said before goes on. Whoever writes into a folder puts
each file there whole, by renaming it; names that begin with a dot are not looked at.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml
from pydantic import ValidationError

from millpond_contracts.fleets import FleetFile, NodeEntry
from millpond_node_agent.observability import log

_SUFFIXES = (".json", ".yaml", ".yml")
_STEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}\Z")
_EXAMPLE = re.compile(r"openb(:[1-9][0-9]{0,3})?\Z")
_EXAMPLE_FILE = "data/openb.yaml"

_Signature = tuple[int, int, int]


class DescriptionRefused(Exception):
    """A description cannot be read, or says something that no node can be; the message says where and what."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One node that shall be there. `key` tells it from all others and names its folder.

    `entry` speaks of this one node: it has no count, and its name is the node's.
    """

    key: str
    entry: NodeEntry
    join_token: str | None = None


class Descriptions:
    """All descriptions of a fleet together."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Read everything for the first time.

        Args:
            paths: files, folders, or `openb` for the nodes of that trace (`openb:30` for a sample of 30).

        Raises:
            DescriptionRefused: a path is not there, or a file named by itself is wrong.
        """
        self._examples = {path: describe_nodes("openb", read_example(path)) for path in paths if _EXAMPLE.match(path)}
        self._paths = [Path(path) for path in paths if path not in self._examples]
        self._seen: dict[Path, tuple[_Signature, list[NodeDescription]]] = {}
        self._complained: set[str] = set()
        for path in self._paths:
            if not path.exists():
                raise DescriptionRefused(f"{path} is not there")
            if not path.is_dir():
                parse_file(path)

    def read(self) -> dict[str, NodeDescription]:
        """The nodes that shall be there now, by key."""
        found: dict[str, NodeDescription] = {}
        for example in self._examples.values():
            found |= {node.key: node for node in example}
        present = [path for each in self._paths for path in self._files(each)]
        for path in present:
            nodes = self._file(path)
            if any(node.key in found for node in nodes):
                self._complain(path, f"another file is called {path.stem}, too")
            else:
                found |= {node.key: node for node in nodes}
        self._seen = {path: seen for path, seen in self._seen.items() if path in present}
        return found

    def _files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return [path] if path.exists() else []
        try:
            names = sorted(path.iterdir())
        except OSError as error:
            self._complain(path, f"the folder cannot be listed: {error.strerror}")
            return [known for known in self._seen if known.parent == path]
        return [each for each in names if each.suffix in _SUFFIXES and not each.name.startswith(".")]

    def _file(self, path: Path) -> list[NodeDescription]:
        """What the file says, or said before it became wrong."""
        known = self._seen.get(path)
        try:
            status = path.stat()
            signature = status.st_mtime_ns, status.st_size, status.st_ino
            if known is not None and known[0] == signature:
                return known[1]
            nodes = describe_nodes(path.stem, parse_file(path))
        except FileNotFoundError:
            return []
        except (OSError, DescriptionRefused) as error:
            self._complain(path, str(error))
            former = [] if known is None else known[1]
            self._seen[path] = _signature(path), former
            return former
        log.info("fleet_file_read", path=str(path), nodes=len(nodes))
        self._seen[path] = signature, nodes
        return nodes

    def _complain(self, path: Path, reason: str) -> None:
        if reason not in self._complained:
            self._complained.add(reason)
            log.error("fleet_file_refused", path=str(path), reason=reason)


def parse_file(path: Path) -> FleetFile:
    """The description in a file.

    Raises:
        DescriptionRefused: it is no YAML or JSON, or does not describe nodes; the message says where and what.
        OSError: it cannot be read.
    """
    if not _STEM.match(path.stem):
        raise DescriptionRefused(f"{path}: a file name of letters, digits, `-` and `_` is needed, it names the nodes")
    return parse_text(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse_text(text: str, where: str) -> FleetFile:
    """The description in a text.

    Raises:
        DescriptionRefused: as `parse_file`.
    """
    try:
        document = yaml.safe_load(text)  # JSON is YAML, too
    except yaml.YAMLError as error:
        raise DescriptionRefused(f"{where}: neither YAML nor JSON: {_yaml_problem(error)}") from None
    if not isinstance(document, Mapping):
        raise DescriptionRefused(f"{where}: expected `nodes:` with a list of entries")
    try:
        return FleetFile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DescriptionRefused(f"{where}: {place}: {first['msg'].removeprefix('Value error, ')}") from error


def read_example(name: str) -> FleetFile:
    """The nodes of the openb trace: all of them for `openb`, for `openb:30` thirty that keep its mix of hardware."""
    text = files("millpond_node_agent").joinpath(_EXAMPLE_FILE).read_text(encoding="utf-8")
    whole = parse_text(text, name)
    _, _, count = name.partition(":")
    return sample(whole, int(count)) if count else whole


def sample(whole: FleetFile, count: int) -> FleetFile:
    """`count` of the nodes, each entry in proportion; what is left over goes to the largest remainders."""
    total = count_nodes(whole)
    if count >= total:
        return whole
    sizes = [entry.count or 1 for entry in whole.nodes]
    given = [size * count // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda index: (-(sizes[index] * count % total), index))
    for index in by_remainder[: count - sum(given)]:
        given[index] += 1
    nodes = [entry.model_copy(update={"count": size}) for entry, size in zip(whole.nodes, given, strict=True) if size]
    return whole.model_copy(update={"nodes": tuple(nodes)})


def describe_nodes(stem: str, description: FleetFile) -> list[NodeDescription]:
    """Every node of a file by itself."""
    return list(_each(stem, description))


def _each(stem: str, description: FleetFile) -> Iterable[NodeDescription]:
    for entry in description.nodes:
        for name in entry.node_names:
            alone = entry.model_copy(update={"name": name, "count": None})
            yield NodeDescription(f"{stem}.{name}", alone, description.join_token)


def count_nodes(description: FleetFile) -> int:
    """How many nodes a file describes."""
    return sum(entry.count or 1 for entry in description.nodes)


def _yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong and where. The error's own text quotes the line, which may be the one with the token."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem or error.context} in line {error.problem_mark.line + 1}"
    return type(error).__name__


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_size, status.st_ino
