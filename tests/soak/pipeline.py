"""A run of a few seconds that faults are thrown at."""

import os
import time
from dataclasses import dataclass
from typing import Any

import streamkern as sk


def pause() -> None:
    """As long as the environment variable PAUSE says, as work of real size takes."""
    time.sleep(float(os.environ.get("PAUSE", "0")))


class Slow(sk.EigenPro):
    """Steps with a pause."""

    def setup(self, problem: Any, prepared: Any = None) -> Any:
        """As EigenPro's."""
        iteration = super().setup(problem, prepared)
        update = iteration.update

        def slow(*given: Any) -> Any:
            pause()
            return update(*given)

        iteration.update = slow  # type: ignore[method-assign]
        return iteration


@dataclass
class Paused:
    """A contribution with a pause."""

    contribution: Any

    def __call__(self, block: Any, state: Any) -> Any:
        """As the contribution's."""
        pause()
        return self.contribution(block, state)


class SlowSweeps(sk.Falkon):
    """Sweeps whose blocks have a pause."""

    def setup(self, problem: Any, prepared: Any = None) -> Any:
        """As Falkon's."""
        iteration = super().setup(problem, prepared)
        begin = iteration.begin

        def slow(state: Any, pass_: int, sweep: Any) -> Any:
            return begin(state, pass_, lambda contribution, shared: sweep(Paused(contribution), shared))

        iteration.begin = slow  # type: ignore[method-assign]
        return iteration


def pipeline(data: str, solver: str = "exact") -> sk.Pipeline:
    """Regression on 2,000 rows.

    Args:
        data: a zarr group in the training layout.
        solver: ``falkon``, or the projection of EigenPro.
    """
    train, test = sk.open_dataset(data, target="target").split(test=0.2)
    chosen = SlowSweeps(epochs=10) if solver == "falkon" else Slow(epochs=4, batch=40, projection=solver)
    return sk.Pipeline(train, sk.Laplace(3.0), sk.Uniform(100), chosen, test=test, task="regression", name="soak")
