"""Software demands are met, missed, or not known; they are never guessed."""

import pytest
from pydantic import ValidationError

from millpond_contracts.ecosystem import Compatibility, Ecosystem, EcosystemRequirement, check_ecosystem

pytestmark = pytest.mark.unit

OFFER = Ecosystem(
    runtime="cuda",
    runtime_version="12.4",
    driver_version="550.54.15",
    frameworks={"pytorch": "2.5.1", "odd": "not a version"},
    denied_operators=("flash_attention_3",),
)
FITS, UNKNOWN, UNFIT = Compatibility.COMPATIBLE, Compatibility.UNKNOWN, Compatibility.INCOMPATIBLE


@pytest.mark.parametrize(
    ("demand", "verdict", "attribute"),
    [
        ({}, FITS, None),
        ({"runtime": ["rocm", "cuda"]}, FITS, None),
        ({"runtime": ["cann"]}, UNFIT, "runtime"),
        ({"runtime_version": ">=12,<13"}, FITS, None),
        ({"runtime_version": ">=12.10"}, UNFIT, "runtime_version"),
        ({"driver_version": ">=550"}, FITS, None),
        ({"frameworks": {"pytorch": ">=2.1"}}, FITS, None),
        ({"frameworks": {"jax": ">=0.4"}}, UNKNOWN, "frameworks.jax"),
        ({"frameworks": {"odd": ">=1"}}, UNKNOWN, "frameworks.odd"),
        ({"frameworks": {"jax": ">=0.4", "pytorch": "<2"}}, UNFIT, "frameworks.pytorch"),
        ({"communication_libraries": {"nccl": ">=2"}}, UNKNOWN, "communication_libraries.nccl"),
        ({"operators": ["matmul"]}, FITS, None),
        ({"operators": ["flash_attention_3"]}, UNFIT, "operators.flash_attention_3"),
    ],
)
def test_demand_when_compared_with_an_offer_then_the_worst_verdict_names_its_attribute(
    demand: dict[str, object], verdict: Compatibility, attribute: str | None
) -> None:
    assert check_ecosystem(OFFER, EcosystemRequirement.model_validate(demand)) == (verdict, attribute)


def test_demand_when_the_offer_says_nothing_then_unknown() -> None:
    demand = EcosystemRequirement(runtime=("cuda",), driver_version=">=1")
    assert check_ecosystem(Ecosystem(), demand) == (UNKNOWN, "runtime")


def test_offers_when_equal_then_they_hash_equal() -> None:
    one = Ecosystem(frameworks={"a": "1", "b": "2"})
    other = Ecosystem(frameworks={"b": "2", "a": "1"})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("wrong", [{"runtime_version": "about 12"}, {"runtime": ["CUDA"]}, {"runtimes": ["cuda"]}])
def test_demand_when_it_cannot_be_read_then_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EcosystemRequirement.model_validate(wrong)
