"""Software stacks of a device and what a request demands of them: versions are matched, never guessed.

The check is three-valued: an attribute that a node does not report is `UNKNOWN`, neither fit nor unfit.
Versions follow PEP 440; a constraint is a specifier set such as `>=2.1,<3`.
"""

from enum import IntEnum
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

Version_ = Annotated[str, StringConstraints(max_length=64)]
Operator = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Component = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


def _check_specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(f"expected version constraints such as '>=2.1,<3', found {text[:40]!r}") from error
    return text


Specifier = Annotated[str, StringConstraints(max_length=128), AfterValidator(_check_specifier)]


class Compatibility(IntEnum):
    """The verdict of one check, worst last so that `max` combines them."""

    COMPATIBLE = 0
    UNKNOWN = 1
    INCOMPATIBLE = 2


class Ecosystem(BaseModel):
    """What a node or device offers: driver, runtime, frameworks, operator and communication libraries."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    runtime: Component | None = Field(None, description="cuda, cann, rocm, musa, neuware, …; null when unknown")
    runtime_version: Version_ | None = None
    driver_version: Version_ | None = None
    frameworks: Annotated[dict[Component, Version_], Field(max_length=256)] = Field(default_factory=dict)
    operator_libraries: Annotated[dict[Component, Version_], Field(max_length=256)] = Field(default_factory=dict)
    communication_libraries: Annotated[dict[Component, Version_], Field(max_length=256)] = Field(default_factory=dict)
    denied_operators: Annotated[tuple[Operator, ...], Field(max_length=4096)] = ()

    def __hash__(self) -> int:
        return _hash_of(self)


class EcosystemRequirement(BaseModel):
    """What a request demands; an empty field demands nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    runtime: Annotated[tuple[Component, ...], Field(max_length=16)] = ()
    runtime_version: Specifier | None = None
    driver_version: Specifier | None = None
    frameworks: Annotated[dict[Component, Specifier], Field(max_length=16)] = Field(default_factory=dict)
    operator_libraries: Annotated[dict[Component, Specifier], Field(max_length=16)] = Field(default_factory=dict)
    communication_libraries: Annotated[dict[Component, Specifier], Field(max_length=16)] = Field(default_factory=dict)
    operators: Annotated[tuple[Operator, ...], Field(max_length=64)] = ()

    def __hash__(self) -> int:
        return _hash_of(self)


def _hash_of(model: BaseModel) -> int:
    """Equal models hash equal, whatever order their mappings were filled in; both serve as dictionary keys."""
    return hash(tuple(tuple(sorted(value.items())) if isinstance(value, dict) else value for _, value in model))


def check_version(offered: str | None, constraint: str | None) -> Compatibility:
    """Whether `offered` satisfies the PEP 440 specifier set `constraint`; unknown when it cannot be read."""
    if constraint is None:
        return Compatibility.COMPATIBLE
    if offered is None:
        return Compatibility.UNKNOWN
    try:
        satisfied = SpecifierSet(constraint).contains(Version(offered), prereleases=True)
    except InvalidVersion:
        return Compatibility.UNKNOWN
    return Compatibility.COMPATIBLE if satisfied else Compatibility.INCOMPATIBLE


def check_ecosystem(offer: Ecosystem, demand: EcosystemRequirement) -> tuple[Compatibility, str | None]:
    """The worst verdict over all demanded attributes and the name of the first attribute that gave it."""
    verdicts: list[tuple[Compatibility, str]] = []
    if demand.runtime:
        if offer.runtime is None:
            verdicts.append((Compatibility.UNKNOWN, "runtime"))
        elif offer.runtime not in demand.runtime:
            verdicts.append((Compatibility.INCOMPATIBLE, "runtime"))
    verdicts.append((check_version(offer.runtime_version, demand.runtime_version), "runtime_version"))
    verdicts.append((check_version(offer.driver_version, demand.driver_version), "driver_version"))
    for kind in ("frameworks", "operator_libraries", "communication_libraries"):
        for name, constraint in getattr(demand, kind).items():
            verdicts.append((check_version(getattr(offer, kind).get(name), constraint), f"{kind}.{name}"))
    verdicts.extend(
        (Compatibility.INCOMPATIBLE, f"operators.{name}") for name in demand.operators if name in offer.denied_operators
    )
    worst = max((verdict for verdict, _ in verdicts), default=Compatibility.COMPATIBLE)
    if worst is Compatibility.COMPATIBLE:
        return worst, None
    return worst, next(name for verdict, name in verdicts if verdict is worst)
