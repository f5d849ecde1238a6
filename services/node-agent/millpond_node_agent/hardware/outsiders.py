"""Device memory that nobody of ours uses: whoever uses a device beside us leaves less of it than its size says.

Whose memory it is cannot be told while a task of ours runs there, so a device is judged while it is idle, and what was
found then holds until it is idle again.
"""

from collections.abc import Collection

from millpond_contracts.resources import Device, DeviceHealth, NodeInventory
from millpond_node_agent.hardware.report import number_of

# What a driver, a display or a monitor keeps of an idle device stays below both.
_FEWEST_MIB = 1024
_SHARE = 0.05


class Outsiders:
    """What was last seen of others on each idle device: identity -> MiB."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def mark(self, inventory: NodeInventory, busy: Collection[str]) -> NodeInventory:
        """The inventory in which devices that others use take no new work, and say why.

        Args:
            busy: identities of devices that tasks of ours may have used while the inventory was taken.
        """
        return inventory.model_copy(
            update={"devices": tuple(self._mark_one(device, device.identity in busy) for device in inventory.devices)}
        )

    def _mark_one(self, device: Device, is_busy: bool) -> Device:
        usable, used = device.memory.usable_mib, number_of(device.fields.get("memory_used_mib"))
        if not is_busy:
            self._seen.pop(device.identity, None)
            if usable is None or used is None or device.memory.unified:
                return device
            if used >= max(_FEWEST_MIB, _SHARE * usable):
                self._seen[device.identity] = int(used)
        taken = self._seen.get(device.identity)
        if taken is None or not device.health.takes_work:
            return device
        reason = f"used_by_others: about {max(1, taken >> 10)} GiB of its memory while no task of ours ran there"
        return device.model_copy(update={"health": DeviceHealth.UNKNOWN, "health_reason": reason})
