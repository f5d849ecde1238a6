"""Simulated nodes: a file per order in a folder that an agent with `--simulate` watches.

A file that appears is a machine that boots and joins, one that vanishes is a machine that leaves. The template's plan
says how long a boot takes, which orders never come, and how many machines there are.
"""

import json
import os
from pathlib import Path

from millpond_autoscaler.providers.protocol import ProviderFailed, ProviderOrder, StockOut
from millpond_contracts.fleets import FleetFile, NodeEntry
from millpond_contracts.ids import NodeOrderId

# A boot that takes as long as the format allows: the machine is there and never comes.
NEVER_SECONDS = 86_400


class SimulatedNodes:
    """The provider whose machines are descriptions in a folder. The folder is made at the first order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def create(self, order: ProviderOrder) -> None:
        """Writes the order's file, whole or not at all."""
        file = self._file(order.id)
        stock = order.template.simulated.stock_nodes
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if file.exists():
                return
            if stock is not None and self._count_of(order.template.model) >= stock:
                raise StockOut(f"all {stock} simulated machines of model {order.template.model} are in use")
            aside = self._folder / f".{file.name}.tmp"
            aside.write_text(describe(order).model_dump_json(exclude_none=True), encoding="utf-8")
            os.replace(aside, file)
        except OSError as error:
            raise ProviderFailed(f"{self._folder}: {error.strerror or error}") from error

    async def release(self, order_id: NodeOrderId) -> None:
        """Removes the order's file."""
        try:
            self._file(order_id).unlink(missing_ok=True)
        except OSError as error:
            raise ProviderFailed(f"{self._folder}: {error.strerror or error}") from error

    async def list_tags(self) -> frozenset[NodeOrderId]:
        """The orders whose file is there; other files are none of ours."""
        found = set()
        for file in self._files():
            try:
                found.add(NodeOrderId.parse(file.stem))
            except ValueError:
                continue
        return frozenset(found)

    def _file(self, order_id: NodeOrderId) -> Path:
        return self._folder / f"{order_id}.json"

    def _files(self) -> list[Path]:
        try:
            return sorted(self._folder.glob(f"{NodeOrderId.prefix}_*.json"))
        except OSError as error:
            raise ProviderFailed(f"{self._folder}: {error.strerror or error}") from error

    def _count_of(self, model: str) -> int:
        count = 0
        for file in self._files():
            try:
                nodes = json.loads(file.read_text(encoding="utf-8"))["nodes"]
            except (ValueError, KeyError, FileNotFoundError):
                continue
            count += sum(node.get("model") == model for node in nodes)
        return count


def describe(order: ProviderOrder) -> FleetFile:
    """The description of an order's machine, as the agent reads it."""
    template = order.template
    plan = template.simulated
    node = NodeEntry(
        name=str(order.id).replace("_", "-"),
        model=template.model,
        vendor=template.vendor,
        devices=template.devices,
        cpu_milli=template.cpu_milli,
        memory_mib=template.memory_mib,
        arch=template.arch,
        region=template.region,
        zone=template.zone,
        labels=template.labels,
        boot_seconds=NEVER_SECONDS if order.number in plan.fail_orders else plan.boot_seconds,
    )
    return FleetFile(join_token=order.join_token, nodes=(node,))
