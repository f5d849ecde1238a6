"""Partitions of NVIDIA devices (MIG) through NVML: a process that reads one request, carries it out and answers.

`python -m millpond_node_agent.hardware.nvidia_partitions` reads and prints JSON. The library can hang its caller for
ever, so the agent starts this with a deadline; see `hardware.partition_child`. A partition is a GPU instance at its
placement with one compute instance over all of it; nothing that is there already is changed.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from ctypes import byref, c_uint
from typing import Any

import pynvml

# (compute slices, memory slices) -> NVML's number of the profile, and of the compute instance that fills it. Variants
# that differ in media engines alone are left out.
PROFILES = {
    (1, 1): (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE),
    (1, 2): (pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE),
    (2, 2): (pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE),
    (3, 4): (pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE),
    (4, 4): (pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE),
    (7, 8): (pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE),
}
# A device or an instance of the binding: an opaque pointer of an untyped package.
Handle = object
_SHARED = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


class CannotDivide(Exception):
    """What was asked for is not possible as things are."""


def main() -> None:
    """Answers one request: `{"ok": …}`, or `{"error": "…"}`."""
    request = json.load(sys.stdin)
    try:
        pynvml.nvmlInit()
        answer = {"ok": carry_out(request)}
    except (pynvml.NVMLError, CannotDivide) as error:
        code = getattr(error, "value", None)
        answer = {"error": str(error) if code is None else f"NVML {code}: {error}"}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()


def carry_out(request: dict[str, Any]) -> Any:
    """Does what the request names: `create` answers the name that a task sees, `list` the places by device."""
    match request["do"]:
        case "create":
            return create(_device(request["uuid"]), request["compute"], request["start"], request["slices"])
        case "destroy":
            destroy(_device(request["uuid"]), request["start"], request["slices"])
            return None
        case _:
            return {uuid: [[start, size] for _, start, size in _instances(_device(uuid))] for uuid in request["uuids"]}


def create(device: Handle, compute: int, start: int, slices: int) -> str:
    """The UUID of the partition at this place, which is made unless it is there.

    Raises:
        CannotDivide: the device is not in partition mode, the place is no legal one, or something else lies in it.
    """
    if pynvml.nvmlDeviceGetMigMode(device)[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        raise CannotDivide("the device is not in MIG mode")
    number, inside = PROFILES[compute, slices]
    profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
    if (start, slices) not in set(_placements(device, profile.id)):
        raise CannotDivide(f"profile {profile.id} may not begin at slice {start} of this device")
    instance = None
    for known, first, size in _instances(device):
        if (first, size) == (start, slices):
            instance = known
        elif first < start + slices and start < first + size:
            raise CannotDivide(f"another instance lies in slices {first} to {first + size - 1}")
    if instance is None:
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, slices)
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.id, byref(place))
    if not list(_compute_instances(instance)):
        filling = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, inside, _SHARED)
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, filling.id)
    return _name_of(device, instance)


def destroy(device: Handle, start: int, slices: int) -> None:
    """Takes down the instance at exactly this place, if there is one; NVML refuses while something runs in it."""
    for instance, first, size in _instances(device):
        if (first, size) == (start, slices):
            for inside in list(_compute_instances(instance)):
                pynvml.nvmlComputeInstanceDestroy(inside)
            pynvml.nvmlGpuInstanceDestroy(instance)


def list_makeable(device: Handle) -> str:
    """The profiles that NVML can make here as text, `compute:memory slices` each: the reading `mig_profiles`."""
    found = []
    for (compute, slices), (number, _) in PROFILES.items():
        with suppress(pynvml.NVMLError):
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
            if any(size == slices for _, size in _placements(device, profile.id)):
                found.append(f"{compute}:{slices}")
    return ",".join(found)


def _device(uuid: str) -> Handle:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def _placements(device: Handle, profile: int) -> Iterator[tuple[int, int]]:
    count = c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile, places, byref(count))
    return ((place.start, place.size) for place in places[: count.value])


def _instances(device: Handle) -> Iterator[tuple[Handle, int, int]]:
    """Every instance of the device with its first slice and size, also of profiles that are never made here."""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        count = c_uint(profile.instanceCount)
        found = (pynvml.c_nvmlGpuInstance_t * max(profile.instanceCount, 1))()
        pynvml.nvmlDeviceGetGpuInstances(device, profile.id, found, byref(count))
        for instance in found[: count.value]:
            place = pynvml.nvmlGpuInstanceGetInfo(instance).placement
            yield instance, place.start, place.size


def _compute_instances(instance: Handle) -> Iterator[Handle]:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            profile = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, _SHARED)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        count = c_uint(profile.instanceCount)
        found = (pynvml.c_nvmlComputeInstance_t * max(profile.instanceCount, 1))()
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile.id, found, byref(count))
        yield from found[: count.value]


def _name_of(device: Handle, instance: Handle) -> str:
    wanted = pynvml.nvmlGpuInstanceGetInfo(instance).id
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        with suppress(pynvml.NVMLError_NotFound):  # indices have gaps
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
            if pynvml.nvmlDeviceGetGpuInstanceId(handle) == wanted:
                return str(pynvml.nvmlDeviceGetUUID(handle))
    raise CannotDivide("the partition was made and has no device of its own")


if __name__ == "__main__":
    main()
