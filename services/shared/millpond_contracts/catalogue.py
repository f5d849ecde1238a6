"""The accelerator catalogue: what is publicly known about each model, and how a name that a tool prints finds its row.

The table is package data (`data/accelerators.csv`, attribution beside it). An unknown figure is None, never zero, and a
name that fits no row, or more than one, finds nothing: a wrong model would promise memory and rates that are not there.
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from millpond_contracts.resources import ComputeRates, DeviceKind

MIB_PER_GIB = 1024
_LONGEST_FLAVOR = 63

Confidence = Literal["high", "medium", "low"]
_CONFIDENCES: dict[str, Confidence] = {"high": "high", "medium": "medium", "low": "low"}

# A tool prints less than the nominal size: 12.6 % less with ECC on GDDR6 (S60), 7 % on T4, under 2 % on HBM.
_USABLE_RATIO = (0.85, 1.03)

# Boards that the vendor's tool lists as two devices, each with half of the memory.
_TWO_DEVICES = frozenset(
    {
        "Ascend 310P x2 (Atlas 300I Duo)",
        "Ascend 910C (A3, two dies)",
        "BI-V150 (Tiangai 150, two chips)",
        "Instinct MI250",
        "Instinct MI250X",
        "MLU370-X8",
        "MR-V100 DUO (two chips)",
        "Wormhole n300",
    }
)

# Vendors whose accelerators are sold as neural processors; everybody else's are GPUs.
_NPU_VENDORS = frozenset({"aws", "cambricon", "enflame", "google", "huawei", "kunlunxin", "tenstorrent", "tsingmicro"})

# Words that name a maker, a brand or a product line, not a model.
_NOISE = frozenset(
    (
        *("nvidia", "tesla", "geforce", "quadro", "dgx", "hgx", "ac", "edition", "generation"),
        *("amd", "radeon", "instinct", "intel", "r", "tm", "data", "center", "graphics", "gpu"),
        *("huawei", "ascend", "x2", "hygon", "dcu", "iluvatar", "metax", "kunlunxin", "enflame", "aws"),
    )
)
_FORMS = frozenset({"sxm", "pcie", "nvl", "oam"})
_MEMORY_TYPE = re.compile(r"^(hbm\w*|gddr\w*|lpddr\w*)$")
_MEMORY_SIZE = re.compile(r"^(\d{1,4})gi?b?$")

# Vendors whose tools may print the family alone (910B, MLU590); the memory size then decides.
_FAMILY_NAMES = frozenset({"huawei", "cambricon"})

# Names that follow no rule. The 480 GB in GH200's name is the CPU's memory.
_ALIASES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("nvidia", re.compile(r"\bgh200 480gb\b", re.IGNORECASE), "GH200 96GB"),
    ("huawei", re.compile(r"(Ascend)?910_?93\d\d"), "Ascend 910C"),
    ("huawei", re.compile(r"(Ascend)?310P3\b", re.IGNORECASE), "Ascend 310P"),
    ("intel", re.compile(r"HL-?225", re.IGNORECASE), "Gaudi2"),
    ("intel", re.compile(r"HL-?325", re.IGNORECASE), "Gaudi3 OAM"),
    ("metax", re.compile(r"\bMX(?=[CN]\d)", re.IGNORECASE), ""),
    ("huawei", re.compile(r"\bAscend(?=\d)", re.IGNORECASE), ""),
)


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model and form factor. Rates are dense; None = not known."""

    vendor: str
    model: str
    architecture: str | None
    memory_gib: float | None
    memory_type: str | None
    memory_bandwidth_gbs: float | None
    fp32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    interconnect: str | None
    interconnect_gbs: float | None
    tdp_w: float | None
    pcie_generation: int | None
    form: str | None
    release_year: int | None
    ecosystem: str | None
    pci_vendor_id: str | None
    confidence: Confidence
    source: str

    @property
    def device_memory_mib(self) -> int | None:
        """The nominal memory in MiB of one device as the tool lists it: half the board's where it lists two."""
        if self.memory_gib is None:
            return None
        board = round(self.memory_gib * MIB_PER_GIB)
        return board // 2 if self.model in _TWO_DEVICES else board

    @property
    def flavor(self) -> str:
        """The built-in flavor of the model, a name made of vendor and model: `nvidia-h100-sxm5-80gb`."""
        words = re.sub(r"[^a-z0-9.]+", "-", f"{self.vendor} {self.model}".lower())
        return words[:_LONGEST_FLAVOR].strip("-.")

    @property
    def kind(self) -> DeviceKind:
        """What kind of device the vendor sells it as."""
        return DeviceKind.NPU if self.vendor in _NPU_VENDORS else DeviceKind.GPU

    @property
    def unified_memory(self) -> bool:
        """Whether CPU and device share one memory."""
        return "unified" in (self.memory_type or "")

    @property
    def promised_rates(self) -> ComputeRates:
        """The rates that may be promised: none from a row of low confidence or of a board that is two devices."""
        if self.confidence == "low" or self.model in _TWO_DEVICES:
            return ComputeRates()
        return ComputeRates(
            fp32_tflops=self.fp32_tflops,
            fp16_tflops=self.fp16_tflops,
            bf16_tflops=self.bf16_tflops,
            fp8_tflops=self.fp8_tflops,
            int8_tops=self.int8_tops,
        )


@dataclass(frozen=True, slots=True)
class _Name:
    """A model name taken apart: the words that identify it, its form and the memory size that it names."""

    words: frozenset[str]
    joined: str
    form: str | None
    memory_gib: int | None


@cache
def load_catalogue() -> tuple[CatalogueEntry, ...]:
    """All rows of the catalogue, in the order of the file."""
    text = files("millpond_contracts").joinpath("data/accelerators.csv").read_text(encoding="utf-8")
    return tuple(_entry(row) for row in csv.DictReader(text.splitlines()))


def find_model(vendor: str, reported_name: str | None, memory_mib: int | None = None) -> CatalogueEntry | None:
    """The row of the model that a vendor's tool names, or None when no row, or more than one, fits.

    Args:
        vendor: the vendor's word in the catalogue, such as `nvidia`.
        reported_name: the name as printed, such as `NVIDIA H100 80GB HBM3`.
        memory_mib: the device's whole memory in MiB as reported; it tells variants apart and refutes a wrong name.
    """
    if not reported_name:
        return None
    name = _take_apart(_spell_out(vendor, reported_name))
    if not name.words:
        return None
    rows = [(entry, _take_apart(entry.model)) for entry in load_catalogue() if entry.vendor == vendor]
    fitting = [(entry, parts) for entry, parts in rows if parts.words == name.words]
    if not fitting and vendor in _FAMILY_NAMES and memory_mib is not None:
        fitting = [(entry, parts) for entry, parts in rows if parts.joined.startswith(name.joined)]
    fitting = _of_the_form(fitting, name.form)
    entries = [entry for entry, parts in fitting if _memory_agrees(entry, parts, name, memory_mib)]
    return entries[0] if len(entries) == 1 else None


def _entry(row: dict[str, str]) -> CatalogueEntry:
    return CatalogueEntry(
        vendor=row["vendor"],
        model=row["model"],
        architecture=row["arch"] or None,
        memory_gib=_number(row["memory_gib"]),
        memory_type=row["memory_type"] or None,
        memory_bandwidth_gbs=_number(row["mem_bandwidth_gbs"]),
        fp32_tflops=_number(row["fp32_tflops"]),
        fp16_tflops=_number(row["fp16_tflops"]),
        bf16_tflops=_number(row["bf16_tflops"]),
        fp8_tflops=_number(row["fp8_tflops"]),
        int8_tops=_number(row["int8_tops"]),
        interconnect=row["interconnect"] or None,
        interconnect_gbs=_number(row["interconnect_gbs"]),
        tdp_w=_number(row["tdp_w"]),
        pcie_generation=int(row["pcie_gen"]) if row["pcie_gen"] else None,
        form=row["form"] or None,
        release_year=int(row["release_year"]) if row["release_year"] else None,
        ecosystem=row["ecosystem"] or None,
        pci_vendor_id=row["pci_vendor_id"] or None,
        confidence=_CONFIDENCES[row["confidence"]],
        source=row["source"],
    )


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _spell_out(vendor: str, reported: str) -> str:
    # A MIG slice carries its parent's name first; rocm-smi puts the product in brackets after the chip's code name.
    reported = re.split(r"\s+MIG\s+", reported, maxsplit=1)[0]
    brackets = re.search(r"\[([^]]+)\]", reported)
    if brackets:
        reported = brackets[1].split("/")[-1]
    for of_vendor, pattern, replacement in _ALIASES:
        if vendor == of_vendor:
            reported = pattern.sub(replacement, reported)
    return reported


def _take_apart(name: str) -> _Name:
    outside = re.sub(r"\([^)]*\)", " ", name)
    words: list[str] = []
    form: str | None = None
    memory: int | None = None
    for word in re.split(r"[^a-z0-9]+", outside.lower()):
        bare = re.sub(r"^(sxm)\d$", r"\1", word)
        size = _MEMORY_SIZE.match(word)
        if bare in _FORMS:
            form = bare
        elif size:
            memory = int(size[1])
        elif word and word not in _NOISE and not _MEMORY_TYPE.match(word):
            words.append(word)
    return _Name(frozenset(words), "".join(words), form, memory)


def _of_the_form(rows: list[tuple[CatalogueEntry, _Name]], form: str | None) -> list[tuple[CatalogueEntry, _Name]]:
    if form is None:
        # NVIDIA's names leave the form out on SXM boards (`NVIDIA H200`) and state it on the others.
        return [row for row in rows if row[1].form in (None, "sxm")] or rows
    return [row for row in rows if row[1].form in (None, form)]


def _memory_agrees(entry: CatalogueEntry, parts: _Name, name: _Name, memory_mib: int | None) -> bool:
    nominal = entry.device_memory_mib
    if memory_mib is not None and nominal is not None and not entry.unified_memory:
        low, high = _USABLE_RATIO
        return low * nominal <= memory_mib <= high * nominal
    return name.memory_gib is None or entry.memory_gib is None or name.memory_gib == round(entry.memory_gib)
