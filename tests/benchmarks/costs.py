"""What each solver takes on a problem of a size: the table of ``docs/choosing-a-solver.md``, from the meter.

python tests/benchmarks/costs.py --rows 60000 --centers 5000 --features 784 --outputs 10 --passes 3
"""

from __future__ import annotations

import argparse
from typing import Any

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize

SOLVERS: dict[str, Any] = {
    "`EigenPro`, exact": lambda E: sk.EigenPro(projection="exact", epochs=E),
    "`EigenPro`, packed": lambda E: sk.EigenPro(projection="packed", epochs=E),
    "`EigenPro`, inexact": lambda E: sk.EigenPro(projection="inexact", epochs=E),
    "`EigenPro`, delayed": lambda E: sk.EigenPro(projection="delayed", epochs=E),
    "`EigenPro1`": lambda E: sk.EigenPro1(epochs=E),
    "`EigenPro2` (every row a center)": lambda E: sk.EigenPro2(epochs=E),
    "`SGD`": lambda E: sk.SGD(epochs=E),
    "`GradientDescent`": lambda E: sk.GradientDescent(epochs=E),
    "`SVRG`": lambda E: sk.SVRG(epochs=E),
    "`Falkon`": lambda E: sk.Falkon(epochs=max(2, E)),
    "`Logistic`": lambda E: sk.Logistic(epochs=max(2, E)),
    "`Direct`": lambda E: sk.Direct(),
}
HEADER = [
    "| solver | batch | values: set-up | training | GFLOP: set-up | training | memory: set-up | training |",
    "|---|---|---|---|---|---|---|---|",
]


def table(n: int, p: int, d: int, outputs: int, passes: int, slots: int = 2) -> list[str]:
    """Lines of the table."""
    lines = list(HEADER)
    for name, make in SOLVERS.items():
        solver = make(passes)
        bill = CostEstimate(
            solver, ProblemSize(n, n if isinstance(solver, sk.EigenPro2) else p, d, outputs, slots=slots)
        )
        effort, memory = bill.work_estimate, bill.memory
        cells = [f"{effort.batch:,}" if effort.batch else "all rows"]
        for work in (effort.setup, effort.training):
            cells.append(f"{(work.values + work.values64) / 1e9:,.2f} G")
        for work in (effort.setup, effort.training):
            cells.append(f"{(work.flops(0.0) - work.numbers) / 1e9:,.0f}")
        cells += [f"{held / (1 << 20):,.0f} MiB" for held in (memory.setup, memory.training)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 60_000), ("centers", 5000), ("features", 784), ("outputs", 10), ("passes", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    print("\n".join(table(given.rows, given.centers, given.features, given.outputs, given.passes)))


if __name__ == "__main__":
    main()
