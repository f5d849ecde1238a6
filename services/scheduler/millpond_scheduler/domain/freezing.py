"""When too many nodes of a pool fall silent together, silence says less about them than about what lies between us."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FreezeRules:
    """From when on silence ends nobody's work, and for how long.

    `percent` and `nodes`: both must be reached by the silent nodes of a pool. `seconds`: after the end of its lease a
    node is given up whatever the others do.
    """

    percent: int = 50
    nodes: int = 3
    seconds: int = 3600

    def freezes(self, silent: int, nodes: int) -> bool:
        """Whether `silent` of the `nodes` that a pool had lately are too many to be lost by themselves."""
        return silent >= self.nodes and silent * 100 >= self.percent * nodes
