"""How far hardware is from what a task needs, attribute by attribute."""

from millpond_contracts.bodies.shapes import Outgoing


class DistancePartView(Outgoing):
    """One attribute: what is wanted and offered, in its unit (null = not told), and how far, in thousandths."""

    attribute: str
    weight: int
    wanted: float
    offered: float | None
    permille: int


class DistanceView(Outgoing):
    """How far the devices are from the need: 0 = as needed, 1000 = nothing of it. Smaller steps go first."""

    permille: int
    step: int
    parts: list[DistancePartView]
