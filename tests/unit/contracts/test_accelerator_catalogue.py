"""Names that vendors' tools print, and the catalogue rows they stand for."""

import pytest

from millpond_contracts.catalogue import find_model, load_catalogue

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("vendor", "name", "memory_mib", "model"),
    [
        ("nvidia", "NVIDIA H100 80GB HBM3", 81_559, "H100 SXM5 80GB"),
        ("nvidia", "NVIDIA H100 80GB HBM3", None, "H100 SXM5 80GB"),
        ("nvidia", "NVIDIA H100 PCIe", 81_559, "H100 PCIe 80GB"),
        ("nvidia", "NVIDIA H100 NVL", 95_830, "H100 NVL 94GB"),
        ("nvidia", "NVIDIA H200", 143_771, "H200 SXM5 141GB"),
        ("nvidia", "NVIDIA A100-SXM4-40GB", 40_960, "A100 SXM4 40GB"),
        ("nvidia", "NVIDIA A100-SXM4-80GB", None, "A100 SXM4 80GB"),
        ("nvidia", "NVIDIA A100 80GB PCIe", 81_920, "A100 PCIe 80GB"),
        ("nvidia", "Tesla T4", 15_360, "Tesla T4"),
        ("nvidia", "NVIDIA L40S", 46_068, "L40S"),
        ("nvidia", "NVIDIA GeForce RTX 4090 D", 24_564, "RTX 4090 D"),
        ("nvidia", "NVIDIA RTX 6000 Ada Generation", 49_140, "RTX 6000 Ada"),
        ("nvidia", "NVIDIA GH200 480GB", 97_871, "GH200 96GB"),
        ("nvidia", "NVIDIA B300 SXM6 AC", 275_040, "B300 SXM 288GB"),
        ("nvidia", "NVIDIA GB10", None, "GB10"),
        ("nvidia", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", 81_920, "A100 SXM4 80GB"),
        ("amd", "Arcturus GL-XL [Instinct MI100]", 32_752, "Instinct MI100"),
        ("amd", "AMD Instinct MI250X", 65_520, "Instinct MI250X"),
        ("huawei", "910B2", 65_536, "Ascend 910B2"),
        ("huawei", "Ascend910B3", 65_536, "Ascend 910B3"),
        ("huawei", "910B", 32_768, "Ascend 910B4"),
        ("huawei", "Ascend910_9392", 65_536, "Ascend 910C (A3, two dies)"),
        ("huawei", "310P3", 44_280, "Ascend 310P x2 (Atlas 300I Duo)"),
        ("cambricon", "MLU370-X8", 23_374, "MLU370-X8"),
        ("cambricon", "MLU590", 81_920, "MLU590-M9D"),
        ("hygon", "K100_AI", 65_520, "DCU K100_AI"),
        ("metax", "MXC500", 65_536, "C500"),
        ("intel", "Intel(R) Arc(TM) B580 Graphics", 12_216, "Arc B580"),
        ("intel", "HL-225", 98_304, "Gaudi2"),
        ("enflame", "S60", 42_976, "S60"),
        ("thead", "PPU-ZW810E", 98_304, "PPU-ZW810E"),
    ],
)
def test_find_model_when_a_tools_name_fits_one_row_then_returns_it(
    vendor: str, name: str, memory_mib: int | None, model: str
) -> None:
    entry = find_model(vendor, name, memory_mib)

    assert entry is not None
    assert entry.model == model


@pytest.mark.parametrize(
    ("vendor", "name", "memory_mib", "why"),
    [
        ("nvidia", None, 81_559, "no name"),
        ("nvidia", "", None, "an empty name"),
        ("nvidia", "NVIDIA", None, "only the maker"),
        ("nvidia", "NVIDIA A10G", 23_028, "another chip than A10"),
        ("nvidia", "NVIDIA GeForce RTX 4090 Laptop GPU", 16_376, "another chip than the desktop's"),
        ("nvidia", "NVIDIA A100-PCIE-40GB", 40_960, "a variant without a row"),
        ("nvidia", "NVIDIA A100", None, "two rows fit"),
        ("nvidia", "GRID A100-10C", 10_240, "a slice of a device"),
        ("nvidia", "NVIDIA H100 80GB HBM3", 40_960, "the memory refutes the name"),
        ("huawei", "910B", 65_536, "three rows fit"),
        ("huawei", "910B", None, "four rows fit"),
        ("amd", "NVIDIA H100 80GB HBM3", 81_559, "another vendor's name"),
    ],
)
def test_find_model_when_no_single_row_fits_then_returns_none(
    vendor: str, name: str | None, memory_mib: int | None, why: str
) -> None:
    assert find_model(vendor, name, memory_mib) is None, why


def test_find_model_when_given_a_rows_own_name_then_returns_that_row() -> None:
    for entry in load_catalogue():
        assert find_model(entry.vendor, entry.model, entry.device_memory_mib) is entry, entry.model


def test_load_catalogue_when_a_figure_is_unknown_then_it_is_none_and_never_zero() -> None:
    catalogue = load_catalogue()
    figures = [
        figure
        for entry in catalogue
        for figure in (entry.memory_gib, entry.fp16_tflops, entry.fp8_tflops, entry.int8_tops, entry.tdp_w)
    ]

    assert len(catalogue) == 117
    assert len({entry.model for entry in catalogue}) == 117
    assert None in figures
    assert all(figure is None or figure > 0 for figure in figures)


def test_promised_rates_when_the_row_is_of_low_confidence_then_promises_nothing() -> None:
    trusted, doubtful = find_model("nvidia", "NVIDIA L40S", 46_068), find_model("huawei", "910B2")

    assert trusted is not None
    assert doubtful is not None
    assert trusted.promised_rates.fp8_tflops == 733
    assert doubtful.fp16_tflops == 376
    assert doubtful.promised_rates.fp16_tflops is None
