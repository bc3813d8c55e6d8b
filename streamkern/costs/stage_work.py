"""The work of a stage before it begins: rows, operations and bytes, and the seconds that they take at given prices."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamkern.costs.machine_speed import Prices
from streamkern.defaults import LOAD_SECONDS
from streamkern.engine.operation_counts import Operations
from streamkern.resources import default_threads


@dataclass(frozen=True)
class StageWork:
    """The work of a stage; ``rows`` counts every pass.

    Attributes:
        read: decoded bytes read from the source.
        ahead: whether a thread more reads and assembles rows, ahead of the others.
        scanned: rows of ``columns`` whose moments are taken.
        loads: times that compiled code and libraries load.
        parts: stages of a fit that this stage is made of, ``times`` such fits.
    """

    rows: int
    passes: int = 1
    read: int = 0
    operations: Operations = field(default_factory=Operations)
    assembled: float = 0.0
    ahead: bool = False
    scanned: int = 0
    loads: int = 0
    steps: int = 0
    columns: int = 0
    parts: tuple[StageWork, ...] = ()
    times: int = 1

    def flops(self, entry: float) -> float:
        """Return floating-point operations, with ``entry`` of them for a value of the basis."""
        own = self.operations + Operations(numbers=3.0 * self.scanned * self.columns)
        return own.flops(entry) + self.times * sum(part.flops(entry) for part in self.parts)

    def seconds(self, prices: Prices, slots: int) -> float:
        """Return seconds on so many threads."""
        busy = self.operations.priced(prices.work)
        reading = self.assembled * prices.row + self.read * prices.byte
        if self.ahead:
            cores = max(slots, default_threads())
            took = max(busy, reading, (busy * slots + reading) / min(cores, slots + 1))
        else:
            took = busy + reading / slots
        took += self.loads * LOAD_SECONDS + self.scanned * prices.moments + self.steps * prices.step
        if self.parts:
            took += self.times * (sum(part.seconds(prices, slots) for part in self.parts) - LOAD_SECONDS)
        return took
