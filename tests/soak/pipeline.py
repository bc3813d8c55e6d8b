"""A run of a few seconds that faults are thrown at."""

import os
import time
from typing import Any

import streamkern as sk


class Slow(sk.EigenPro):
    """Steps that take as long as the environment variable PAUSE says, as steps of real size do."""

    def setup(self, problem: Any, prepared: Any = None) -> Any:
        """As EigenPro's."""
        iteration = super().setup(problem, prepared)
        update, pause = iteration.update, float(os.environ.get("PAUSE", "0"))

        def slow(*given: Any) -> Any:
            time.sleep(pause)
            return update(*given)

        iteration.update = slow  # type: ignore[method-assign]
        return iteration


def pipeline(data: str, epochs: int = 4, projection: str = "exact") -> sk.Pipeline:
    """Regression on 2,000 rows.

    Args:
        data: a zarr group in the training layout.
        epochs: passes.
        projection: of EigenPro.
    """
    train, test = sk.open_dataset(data, target="target").split(test=0.2)
    solver = Slow(epochs=epochs, batch=40, projection=projection)
    return sk.Pipeline(train, sk.Laplace(3.0), sk.Uniform(100), solver, test=test, task="regression", name="soak")
