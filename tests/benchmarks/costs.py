"""What each solver takes on a problem of a size: the table of ``docs/choosing-a-solver.md``, from the meter.

python -m tests.benchmarks.costs --rows 60000 --centers 5000 --features 784 --outputs 10 --passes 3
"""

from __future__ import annotations

import argparse
from typing import Any

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize
from tests.benchmarks.results import add_results, add_run

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
    "`LBFGS`": lambda E: sk.LBFGS(epochs=max(2, E)),
    "`Direct`": lambda E: sk.Direct(),
}


def costs(n: int, p: int, d: int, outputs: int, passes: int, slots: int = 2) -> list[dict[str, Any]]:
    """Return a line for each solver, as docs/results has it."""
    lines: list[dict[str, Any]] = []
    for name, make in SOLVERS.items():
        solver = make(passes)
        bill = CostEstimate(
            solver, ProblemSize(n, n if isinstance(solver, sk.EigenPro2) else p, d, outputs, slots=slots)
        )
        effort, memory = bill.work_estimate, bill.memory
        line: dict[str, Any] = {"table": "costs", "solver": name, "batch": effort.batch or "all rows"}
        for title, work in (("values: set-up, G", effort.setup), ("training, G", effort.training)):
            line[title] = round((work.values + work.values64) / 1e9, 2)
        for title, work in (("GFLOP: set-up", effort.setup), ("of training", effort.training)):
            line[title] = round((work.flops(0.0) - work.numbers) / 1e9)
        for title, held in (("memory: set-up, MiB", memory.setup), ("while training, MiB", memory.training)):
            line[title] = round(held / (1 << 20))
        lines.append(line)
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 60_000), ("centers", 5000), ("features", 784), ("outputs", 10), ("passes", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    add_results(parser)
    given = parser.parse_args()
    lines = costs(given.rows, given.centers, given.features, given.outputs, given.passes)
    titles = [*lines[0]][1:]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for line in lines:
        cells = (each if isinstance(each, str) else f"{each:,}" for each in (line[title] for title in titles))
        print(f"| {' | '.join(cells)} |")
    add_run(given.results, lines)


if __name__ == "__main__":
    main()
