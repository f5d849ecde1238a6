"""Flavors: the catalogue's and the operators', and every device's place in exactly one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from millpond_contracts.bodies.nodes import FlavorSpec, FlavorView, NodeState
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import FlavorChanged, InventoryChanged
from millpond_contracts.resources import Device
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.flavors import (
    UNKNOWN_PREFIX,
    builtin_flavors,
    resolve_flavor,
    unknown_flavor,
)
from millpond_registry.store import flavors, nodes
from millpond_registry.store.devices import devices_of, nodes_with_devices, put_devices
from millpond_registry.usecases.nodes import save_node


async def install_builtin_flavors(unit: UnitOfWork) -> None:
    """Stores the catalogue's flavors that are missing; any number of processes may do so together."""
    known = {flavor.name for flavor in await flavors.read_all_flavors(unit)}
    for flavor in builtin_flavors():
        if flavor.name not in known and await flavors.insert_flavor(unit, flavor):
            unit.emit(FlavorChanged(flavor=flavor))


async def resolve_flavors(
    unit: UnitOfWork, devices: Sequence[Device], known: Sequence[FlavorView] | None = None
) -> Mapping[str, str]:
    """device identity -> flavor name; a vendor's `unknown-` flavor is made when it is first needed."""
    if known is None:
        known = await flavors.read_all_flavors(unit) if devices else ()
    names = {flavor.name for flavor in known}
    found: dict[str, str] = {}
    # In the order of vendors, so that two transactions that make the same flavors never wait for each other.
    for device in sorted(devices, key=lambda device: device.vendor):
        flavor = resolve_flavor(device, known) or unknown_flavor(device.vendor, device.kind)
        if flavor.name not in names and await flavors.insert_flavor(unit, flavor):
            unit.emit(FlavorChanged(flavor=flavor))
        names.add(flavor.name)
        found[device.identity] = flavor.name
    return found


async def create_flavor(unit: UnitOfWork, caller: Principal, spec: FlavorSpec) -> FlavorView:
    """A new flavor; devices that it describes best belong to it from now on.

    Raises:
        ProblemError: 409 when the name is taken or reserved.
    """
    if spec.name.startswith(UNKNOWN_PREFIX):
        raise ProblemError(ErrorCode.NAME_TAKEN, f"Names that start with {UNKNOWN_PREFIX!r} are the registry's own.")
    flavor = FlavorView(name=spec.name, kind=spec.kind, selector=spec.selector, profiles=spec.profiles, generation=1)
    if not await flavors.insert_flavor(unit, flavor):
        raise ProblemError(ErrorCode.NAME_TAKEN, f"There is a flavor {spec.name} already; choose another name.")
    unit.emit(FlavorChanged(flavor=flavor))
    audit(unit, caller, "flavor.create", spec.name, after=flavor)
    await _place_devices_again(unit)
    return flavor


async def replace_flavor(unit: UnitOfWork, caller: Principal, name: str, spec: FlavorSpec, if_match: str) -> FlavorView:
    """The flavor with another description.

    Raises:
        ProblemError: 404 unknown, 412 stale, 409 for a flavor of the catalogue, 422 for another name in the body.
    """
    current = await _lock_own_flavor(unit, name, if_match)
    if spec.name != name:
        raise ProblemError(ErrorCode.BODY_INVALID, f"A flavor keeps its name: the body names {spec.name}, not {name}.")
    changed = await flavors.update_flavor(unit, current, spec)
    unit.emit(FlavorChanged(flavor=changed))
    audit(unit, caller, "flavor.replace", name, before=current, after=changed)
    await _place_devices_again(unit)
    return changed


async def delete_flavor(unit: UnitOfWork, caller: Principal, name: str, if_match: str) -> None:
    """Removes an operator's flavor; its devices fall to the next best.

    Raises:
        ProblemError: 404 unknown, 412 stale, 409 for a flavor of the catalogue.
    """
    current = await _lock_own_flavor(unit, name, if_match)
    await flavors.delete_flavor(unit, name)
    gone = current.model_copy(update={"generation": current.generation + 1})
    unit.emit(FlavorChanged(flavor=gone, deleted=True))
    audit(unit, caller, "flavor.delete", name, before=current)
    await _place_devices_again(unit)


async def get_flavor(unit: UnitOfWork, name: str) -> FlavorView:
    """The flavor with this name.

    Raises:
        ProblemError: 404 when there is none.
    """
    flavor = await flavors.find_flavor(unit, name)
    if flavor is None:
        raise ProblemError(ErrorCode.FLAVOR_NOT_FOUND, f"There is no flavor {name[:64]}.")
    return flavor


async def _lock_own_flavor(unit: UnitOfWork, name: str, if_match: str) -> FlavorView:
    flavor = await flavors.lock_flavor(unit, name)
    if flavor is None:
        raise ProblemError(ErrorCode.FLAVOR_NOT_FOUND, f"There is no flavor {name[:64]}.")
    check_if_match(if_match, flavor.generation)
    if flavor.builtin:
        raise ProblemError(
            ErrorCode.FLAVOR_BUILTIN, f"{name} comes with the catalogue; create a flavor with a narrower selector."
        )
    return flavor


async def _place_devices_again(unit: UnitOfWork) -> None:
    """Resolves every device anew after flavors changed, and tells of the nodes where that made a difference."""
    known = await flavors.read_all_flavors(unit)
    for node_id in await nodes_with_devices(unit):
        node = await nodes.lock_node(unit, node_id)
        if node is None or node.state is NodeState.REMOVED:
            continue
        before = await devices_of(unit, node.id)
        names = await resolve_flavors(unit, [device.report for device in before], known)
        after = [replace(device, flavor=names[device.report.identity]) for device in before]
        if after != before:
            await put_devices(unit, node.id, after)
            await save_node(unit, node, node, InventoryChanged, devices=after)
