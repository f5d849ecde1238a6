"""What a task may see, in each vendor's words."""

import re

import pytest

from millpond_node_agent.runtimes.protocol import DeviceGrant, RefusalCode, RefusedTask
from millpond_node_agent.runtimes.visibility import load_vendors, visible_devices

pytestmark = pytest.mark.unit

_STYLES = {"uuid", "index", "position", "constant", "unsupported"}


def grant(vendor: str, index: int, uuid: str | None = None) -> DeviceGrant:
    return DeviceGrant(f"{vendor}/{index}", vendor, index, uuid, 1000, None)


def test_table_when_loaded_then_every_row_is_usable() -> None:
    vendors = load_vendors()

    assert len(vendors) >= 15
    for vendor in vendors.values():
        assert vendor.confidence in {"high", "medium", "low"}
        assert vendor.variables
        for variable in vendor.variables:
            assert re.fullmatch(r"[A-Z0-9_]+", variable.name)
            assert variable.style in _STYLES
    # One name, one meaning of "none": the last row would silently win otherwise.
    nones = {(variable.name, variable.none) for vendor in vendors.values() for variable in vendor.variables}
    assert len(nones) == len({name for name, _ in nones})


def test_cpu_task_when_no_device_is_granted_then_every_variable_says_none() -> None:
    env = visible_devices(())

    names = {variable.name for vendor in load_vendors().values() for variable in vendor.variables}
    assert set(env) == names
    assert env["CUDA_VISIBLE_DEVICES"] == "-1"
    assert env["ASCEND_RT_VISIBLE_DEVICES"] == "-1"
    assert env["ONEAPI_DEVICE_SELECTOR"] == "!*:gpu"


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        (
            (grant("nvidia", 10, "GPU-b"), grant("nvidia", 2, "GPU-a")),
            {
                "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "MLU_VISIBLE_DEVICES": "-1",
            },
        ),
        ((grant("nvidia", 3),), {"CUDA_VISIBLE_DEVICES": "3"}),
        (
            (grant("huawei", 10), grant("huawei", 9)),
            {"ASCEND_RT_VISIBLE_DEVICES": "9,10", "CUDA_VISIBLE_DEVICES": "-1"},
        ),
        # ROCR renumbers what is left, so HIP counts from zero.
        (
            (grant("amd", 3), grant("amd", 2)),
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"},
        ),
        (
            (grant("nvidia", 0, "GPU-a"), grant("huawei", 1)),
            {"CUDA_VISIBLE_DEVICES": "GPU-a", "ASCEND_RT_VISIBLE_DEVICES": "1"},
        ),
    ],
)
def test_device_task_when_granted_then_its_devices_are_named_in_ascending_order(
    grants: tuple[DeviceGrant, ...], expected: dict[str, str]
) -> None:
    env = visible_devices(grants)

    assert {name: env[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("grants", "code"),
    [
        ((grant("unheard-of", 0),), RefusalCode.UNKNOWN_DEVICE),
        ((grant("aws", 0),), RefusalCode.UNKNOWN_DEVICE),
        ((grant("nvidia", 0), grant("metax", 0)), RefusalCode.MIXED_DEVICES),
    ],
)
def test_device_task_when_devices_cannot_be_told_apart_then_it_is_refused(
    grants: tuple[DeviceGrant, ...], code: RefusalCode
) -> None:
    with pytest.raises(RefusedTask) as refusal:
        visible_devices(grants)

    assert refusal.value.code is code
