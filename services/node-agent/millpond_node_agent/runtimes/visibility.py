"""Which devices a task may see, said in each vendor's own variables; the names are data (`visibility.json`).

A variable that is not set means *all devices*, so a task gets the variables of every known vendor: its own devices
for the vendors it was granted, "none" for the others. Styles: `uuid` (index where a device has none), `index` (as the
machine counts), `position` (0, 1, … among the devices that an earlier variable left over), `constant`,
`unsupported` (a grant of this vendor is refused, because the variable does not name devices).
"""

import grp
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from millpond_node_agent.runtimes.protocol import DeviceGrant, RefusalCode, RefusedTask


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable of a vendor."""

    name: str
    style: str
    none: str
    granted: str = ""


@dataclass(frozen=True, slots=True)
class Vendor:
    """How one vendor's software is told what it may see. `groups` own the device nodes on common systems."""

    vendor: str
    confidence: str
    variables: tuple[Variable, ...]
    fixed: Mapping[str, str]
    groups: tuple[str, ...]


@cache
def load_vendors() -> Mapping[str, Vendor]:
    """The table of known vendors by name."""
    text = resources.files("millpond_node_agent.runtimes").joinpath("visibility.json").read_text(encoding="utf-8")
    vendors = {}
    for row in json.loads(text)["vendors"]:
        variables = tuple(Variable(**variable) for variable in row["variables"])
        vendors[row["vendor"]] = Vendor(row["vendor"], row["confidence"], variables, row["fixed"], tuple(row["groups"]))
    return vendors


def visible_devices(grants: Sequence[DeviceGrant]) -> dict[str, str]:
    """The variables for a task that holds `grants` (none for a CPU task).

    Raises:
        RefusedTask: `unknown_device` for a vendor we have no variable of, `mixed_devices` when two vendors share one.
    """
    vendors = load_vendors()
    env = {variable.name: variable.none for vendor in vendors.values() for variable in vendor.variables}
    owners: dict[str, str] = {}
    for name in sorted({grant.vendor for grant in grants}):
        vendor = _known(name)
        # Ascending: some runtimes silently drop devices that are listed out of order.
        own = sorted((grant for grant in grants if grant.vendor == name), key=lambda grant: grant.index)
        env.update(vendor.fixed)
        for variable in vendor.variables:
            owner = owners.setdefault(variable.name, name)
            if owner != name:
                detail = f"devices of {owner} and {name} share the variable {variable.name}"
                raise RefusedTask(RefusalCode.MIXED_DEVICES, detail)
            env[variable.name] = _value(variable, own)
    return env


def device_groups(grants: Iterable[DeviceGrant]) -> tuple[int, ...]:
    """The ids of the groups that the granted devices' nodes belong to, as far as this machine has them."""
    wanted = {name for grant in grants for name in _known(grant.vendor).groups}
    return tuple(sorted(group.gr_gid for group in grp.getgrall() if group.gr_name in wanted))


def _known(name: str) -> Vendor:
    vendor = load_vendors().get(name)
    if vendor is None:
        raise RefusedTask(RefusalCode.UNKNOWN_DEVICE, f"no visibility variable is known for vendor {name!r}")
    return vendor


def _value(variable: Variable, grants: Sequence[DeviceGrant]) -> str:
    match variable.style:
        case "uuid":
            return ",".join(grant.uuid or str(grant.index) for grant in grants)
        case "index":
            return ",".join(str(grant.index) for grant in grants)
        case "position":
            return ",".join(str(position) for position in range(len(grants)))
        case "constant":
            return variable.granted
        case _:
            raise RefusedTask(RefusalCode.UNKNOWN_DEVICE, f"{variable.name} cannot name single devices")
