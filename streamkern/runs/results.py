"""The return value of a run: the content of ``result.json``, with attributes for the fields used most."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from streamkern.memory import format_bytes
from streamkern.progress import duration_text
from streamkern.report.run_status import metrics_in_words


class RunResult(dict[str, Any]):
    """Results of a run: every entry of ``result.json`` by its key, and the main entries as attributes.

    ``str(result)`` is the summary that the command line prints.

    Args:
        entries: the content of ``result.json``.
        run_dir: the run directory.

    Attributes:
        run_dir: the run directory.
    """

    def __init__(self, entries: dict[str, Any], run_dir: Path) -> None:
        super().__init__(entries)
        self.run_dir = run_dir

    @property
    def status(self) -> str:
        """Status of the run: ``done``."""
        return str(self["status"])

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Metrics of the training rows (``train``) and of the test rows, if any (``test``)."""
        return cast("dict[str, dict[str, Any]]", self["metrics"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """An entry for each pass: loss, rows, seconds and, with validation rows, their metrics."""
        return cast("list[dict[str, Any]]", self["history"])

    @property
    def seconds(self) -> float:
        """Duration of the run in seconds."""
        return float(self["seconds"])

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights, as 64 hexadecimal digits."""
        return str(self["weights_sha256"])

    @property
    def model_path(self) -> Path:
        """Path of the saved model, for ``load_model``."""
        return self.run_dir / "model.zarr"

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-serialisable data: the content of ``result.json``."""
        return dict(self)

    def __repr__(self) -> str:
        part = "test" if "test" in self.metrics else "train"
        return f"RunResult({self.status}, {part} {metrics_in_words(self.metrics[part])}, {self.run_dir})"

    def __str__(self) -> str:
        lines = [f"{self.get('name') or self.run_dir.name}: {self.status} in {duration_text(self.seconds)}"]
        lines += [f"  {part:<9}{metrics_in_words(metrics)}" for part, metrics in self.metrics.items()]
        waiting = f"{self['data_wait_fraction']:.0%} of the time waiting for data"
        lines += [
            f"  speed    {self['samples_per_second']:,.0f} rows/s, {waiting}",
            f"  memory   {format_bytes(self['peak_memory_bytes'])} at the peak, "
            f"{format_bytes(self['projected_memory_bytes'])} projected, "
            f"{format_bytes(self['memory_budget_bytes'])} allowed",
        ]
        taken = [stage["name"] for stage in self["stages"] if stage["cached"]]
        if taken:
            lines.append(f"  kept     {', '.join(taken)}: reused from an earlier run")
        return "\n".join([*lines, f"  result   {self.run_dir / 'result.json'}", f"  model    {self.model_path}"])
