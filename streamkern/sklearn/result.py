"""The result of an estimator's fit, which prints itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamkern.costs.footprint import Footprint
from streamkern.memory import format_bytes
from streamkern.progress import duration_text
from streamkern.solvers import Outcome


@dataclass(frozen=True, eq=False, repr=False)
class FitResult:
    """Result of an estimator's fit; ``print(model.result_)`` shows a summary.

    Attributes:
        solver: name of the solver, or names of the leaves' solvers.
        kernel: the kernel, with its bandwidth, as text; of several leaves, the kernel of the largest.
        centers: number of centers, in all leaves together.
        dtype: dtype of the arithmetic.
        seconds: seconds of the fit, including the search for a kernel.
        peak_bytes: largest resident memory of the process so far, in bytes.
        report: ridge, batch, step, spectrum and other findings, by name.
        outcome: how training ended: passes, rows, seconds, history.
        footprint: projected memory.
    """

    solver: str
    kernel: str
    centers: int
    dtype: str
    seconds: float
    peak_bytes: int
    report: dict[str, Any]
    outcome: Outcome
    footprint: Footprint

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of the validation rows after the pass that the weights are from; empty without validation rows."""
        history, best = self.outcome.history, self.report.get("best_pass")
        if not history:
            return {}
        entry = next((each for each in history if each["pass"] == best), history[-1])
        return dict(entry.get("validation") or {})

    def __repr__(self) -> str:
        leaves = self.report.get("partition", {}).get("leaves", 1)
        passes, found = self.outcome.passes, self.report
        ended = [f"{passes} pass{'' if passes == 1 else 'es'} over {self.outcome.rows:,} rows"]
        ended += [f"weights of pass {found['best_pass']}"] if passes > 1 and "best_pass" in found else []
        ended += [f"{name} {found[name]:.2g}" for name in ("ridge", "residual") if isinstance(found.get(name), float)]
        ended += [f"loss {self.outcome.history[-1]['loss']:.4g}"] if passes > 1 and self.outcome.history else []
        lines = [
            f"{self.solver} in {duration_text(self.seconds)}",
            f"  kernel      {self.kernel}",
            f"  centers     {self.centers:,}" + (f" in {leaves:,} leaves" if leaves > 1 else ""),
            f"  training    {', '.join(ended)}; {self.dtype}",
            f"  memory      {format_bytes(self.peak_bytes)} at the peak of the process, "
            f"{format_bytes(self.footprint.peak)} projected, {format_bytes(self.footprint.budget)} allowed",
        ]
        scores = [f"{name} {value:.4g}" for name, value in self.metrics.items() if isinstance(value, float)]
        return "\n".join([*lines, *([f"  validation  {', '.join(scores)}"] if scores else [])])


def solvers_of(report: dict[str, Any]) -> str:
    """Return the names of the solvers of leaves; an empty text for one model."""
    return ", ".join(sorted({each["solver"] for each in report.get("partition", {}).get("by_leaf", ())} - {""}))
