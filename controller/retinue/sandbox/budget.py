"""What a node's sandboxes may take together: how many, their memory, their processes. Pure."""

from retinue.terms.record import Record


class Weight(Record, frozen=True):
    """What one sandbox takes, by its limits: what it uses is less, and not known before."""

    count: int
    memory_bytes: int
    """With what it may write to a tmpfs, which is memory too."""
    process_count: int


class Budget:
    """What is taken and what is left."""

    def __init__(self, limits: Weight) -> None:
        self.limits = limits
        self.used = Weight(0, 0, 0)

    def fits(self, weight: Weight) -> bool:
        """Say whether there is room now."""
        return not self.find_over(weight, self.used)

    def could_fit(self, weight: Weight) -> str:
        """Say what of it is more than the whole budget; empty: it fits when nothing else is there."""
        return self.find_over(weight, Weight(0, 0, 0))

    def find_over(self, weight: Weight, used: Weight) -> str:
        """Name the first part that goes over."""
        for name in Weight.__struct_fields__:
            if getattr(used, name) + getattr(weight, name) > getattr(self.limits, name):
                return name
        return ""

    def take(self, weight: Weight) -> None:
        """Take room; whoever takes has asked `fits`."""
        self._add(weight, 1)

    def give(self, weight: Weight) -> None:
        """Give it back."""
        self._add(weight, -1)

    def _add(self, weight: Weight, sign: int) -> None:
        used = self.used
        self.used = Weight(
            used.count + sign * weight.count,
            used.memory_bytes + sign * weight.memory_bytes,
            used.process_count + sign * weight.process_count,
        )
