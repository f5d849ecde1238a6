"""What of a request can be decided from a node's hardware alone: asked once per shape and remembered."""

from millpond_contracts.ecosystem import Compatibility, Ecosystem, check_ecosystem
from millpond_contracts.resources import SIMULATED_TAINT, Taint
from millpond_scheduler.domain.nodes import PROCESS_RUNTIME, DeviceProfile, NodeProfile
from millpond_scheduler.domain.requests import RequestClass


def acts_it_out(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """A simulated job needs a simulated node."""
    return not request.simulated or any(taint.key == SIMULATED_TAINT for taint in node.taints)


def tolerates_taints(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """Every taint of the node is tolerated, by key or by key and value; that of simulated nodes by their jobs alone."""
    return all(_is_tolerated(taint, request) for taint in node.taints)


def _is_tolerated(taint: Taint, request: RequestClass) -> bool:
    if taint.key == SIMULATED_TAINT:
        return request.simulated
    return taint.key in request.tolerations or f"{taint.key}={taint.value}" in request.tolerations


def has_runtime(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """A job with an image needs a runtime that can start it."""
    return not request.needs_image or bool(node.runtimes - {PROCESS_RUNTIME})


def has_architecture(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """The processor is one that the job accepts; an unreported one is not, unless the job accepts the unknown."""
    if not request.architectures or node.architecture in request.architectures:
        return True
    return node.architecture is None and request.allow_unknown


def matches_device(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """The device is of the kind and flavor asked for."""
    demand = request.devices
    if demand is None or device is None:
        return demand is None
    return demand.kind in (None, device.kind) and (not demand.flavors or device.flavor in demand.flavors)


def is_in_mode(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """The device is given out as asked: in partitions of this profile, or whole and in shares. One mode at a time."""
    demand = request.devices
    if demand is None or device is None or demand.profile is None:
        return device is None or device.geometry is None
    return device.geometry is not None and device.geometry.find_profile(demand.profile) is not None


def speaks_runtime(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """The runtime is one that the job accepts, or not reported."""
    verdict, attribute = check_software(node, device, request)
    return not (verdict is Compatibility.INCOMPATIBLE and attribute == "runtime")


def satisfies_versions(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """No reported version or operator contradicts the job."""
    return check_software(node, device, request)[0] is not Compatibility.INCOMPATIBLE


def knows_software(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """Everything that the job constrains is reported, unless it accepts the unknown."""
    return request.allow_unknown or check_software(node, device, request)[0] is not Compatibility.UNKNOWN


def reports_attributes(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """The device reports every attribute that has a minimum, unless the job accepts the unknown.

    Memory that is not reported cannot be divided, so a demand on it is never met by accepting the unknown.
    """
    demand = request.devices
    if demand is None or device is None:
        return True
    if demand.memory_mib is not None and device.memory_mib is None:
        return False
    reported = {name for name, _ in device.attributes}
    return request.allow_unknown or all(name in reported for name, _ in demand.minima)


def reaches_minima(node: NodeProfile, device: DeviceProfile | None, request: RequestClass) -> bool:
    """The device has at least the attributes and the memory asked for."""
    demand = request.devices
    if demand is None or device is None:
        return True
    if demand.memory_mib is not None and device.memory_mib is not None and device.memory_mib < demand.memory_mib:
        return False
    reported = dict(device.attributes)
    return all(reported.get(name, minimum) >= minimum for name, minimum in demand.minima)


def check_software(
    node: NodeProfile, device: DeviceProfile | None, request: RequestClass
) -> tuple[Compatibility, str | None]:
    """The verdict on the software that a task would find: the device's own where it tells, else the node's."""
    offer = node.ecosystem if device is None else merge_ecosystems(node.ecosystem, device.ecosystem)
    return check_ecosystem(offer, request.ecosystem)


def merge_ecosystems(node: Ecosystem, device: Ecosystem) -> Ecosystem:
    """The node's software with the device's own on top."""
    return Ecosystem(
        runtime=device.runtime or node.runtime,
        runtime_version=device.runtime_version or node.runtime_version,
        driver_version=device.driver_version or node.driver_version,
        frameworks={**node.frameworks, **device.frameworks},
        operator_libraries={**node.operator_libraries, **device.operator_libraries},
        communication_libraries={**node.communication_libraries, **device.communication_libraries},
        denied_operators=tuple(dict.fromkeys(node.denied_operators + device.denied_operators)),
    )
