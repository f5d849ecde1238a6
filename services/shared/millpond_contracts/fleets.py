"""How simulated nodes are described: the files that the agent's `--simulate` reads and an order of nodes is.

A model must stand in the accelerator catalogue, so that a simulated device promises what a real one would.
"""

from typing import Annotated

from pydantic import Field, StrictInt, model_validator

from millpond_contracts.bodies.shapes import Incoming
from millpond_contracts.catalogue import CatalogueEntry, find_model, load_catalogue
from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.partitions import find_geometry
from millpond_contracts.quantities import CpuMilli, Labels, MemoryMib, Name
from millpond_contracts.resources import Text

_LONGEST_NAME = 63


class NodeEntry(Incoming):
    """`count` equal nodes, named `<name>-0`, `<name>-1` …; without `count` one node that has the name itself.

    `boot_seconds` pass from the appearance of the entry until the node joins. `cpu_milli` and `memory_mib` are what
    jobs may get. `unlisted` = the model is in no catalogue: the device has a name, and nothing else is known of it.
    `partitioned` = its devices are in partition mode (MIG) and given out in the profiles of their model alone.
    """

    name: Name
    count: StrictInt | None = Field(None, ge=1, le=10_000)
    model: Text | None = Field(None, description="a model of the accelerator catalogue; none = no devices")
    vendor: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,32}$")] | None = Field(
        None, description="only needed when the model's name alone fits several rows, or none"
    )
    unlisted: bool = False
    devices: StrictInt | None = Field(None, ge=0, le=64, description="per node; by default 1 with a model, else 0")
    partitioned: bool = False
    cpu_milli: Annotated[CpuMilli, Field(ge=1)]
    memory_mib: Annotated[MemoryMib, Field(ge=1)]
    arch: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,32}$")] = "x86_64"
    region: Text | None = None
    zone: Text | None = None
    rack: Text | None = None
    labels: Labels = Field(default_factory=dict)
    ecosystem: Ecosystem | None = Field(None, description="by default the runtime that the catalogue names, alone")
    boot_seconds: float = Field(0, ge=0, le=86_400)

    @model_validator(mode="after")
    def _known_hardware(self) -> "NodeEntry":
        if self.model is None:
            if self.devices:
                raise ValueError("devices need a model")
        elif self.unlisted:
            if self.vendor is None:
                raise ValueError("an unlisted model needs a vendor")
        else:
            entry = find_catalogue_entry(self.model, self.vendor)
            if self.partitioned and find_geometry(entry.model) is None:
                raise ValueError(f"no partition profiles of {entry.model} are known")
        if self.partitioned and (self.model is None or self.unlisted):
            raise ValueError("partitioned devices need a model of the accelerator catalogue")
        return self

    @model_validator(mode="after")
    def _short_name(self) -> "NodeEntry":
        if len(self.node_names[-1]) > _LONGEST_NAME:
            raise ValueError(f"the name is too long for {self.count} nodes: {_LONGEST_NAME} characters with the number")
        return self

    @property
    def node_names(self) -> list[str]:
        """The nodes' names in the order in which they leave last."""
        return [self.name] if self.count is None else [f"{self.name}-{index}" for index in range(self.count)]

    @property
    def device_count(self) -> int:
        """Devices per node."""
        if self.devices is not None:
            return self.devices
        return 0 if self.model is None else 1


class FleetFile(Incoming):
    """One file of simulated nodes. `join_token` is what these nodes join with; none = the fleet's own token."""

    join_token: str | None = Field(None, min_length=8, max_length=128, repr=False)
    nodes: Annotated[tuple[NodeEntry, ...], Field(max_length=10_000)] = ()

    @model_validator(mode="after")
    def _unique_names(self) -> "FleetFile":
        names: set[str] = set()
        for entry in self.nodes:
            for name in entry.node_names:
                if name in names:
                    raise ValueError(f"two nodes are named {name}")
                names.add(name)
        return self


def find_catalogue_entry(model: str, vendor: str | None = None) -> CatalogueEntry:
    """The catalogue's row of a model, by the name in the catalogue (in any case) or as a vendor's tool prints it.

    Raises:
        ValueError: no row fits, or several do.
    """
    rows = [row for row in load_catalogue() if vendor in (None, row.vendor)]
    named = [row for row in rows if row.model.casefold() == model.casefold()]
    vendors = sorted({row.vendor for row in rows})
    found = named or [row for each in vendors if (row := find_model(each, model)) is not None]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"{model[:80]!r} fits several models, name the vendor: {', '.join(row.vendor for row in found)}"
        )
    raise ValueError(f"{model[:80]!r} is no model of the accelerator catalogue")
