"""What a card does: its ceilings, the parts of a block, and the parts of a step.

    python tests/benchmarks/gpu.py ceilings     # products in float32 and of halves, with their errors; copies; launches
    python tests/benchmarks/gpu.py blocks       # a block against the card's float32 product; L1 distances; gradients
    python tests/benchmarks/gpu.py steps        # a step of EigenPro by its parts: the card's time, and Python's

Times are medians of at least seven, by the card's own events unless it says otherwise, on random numbers; of short
calls they are Python's. A block is compared with the float32 product of its inner products alone. Each command prints a
table, and last one line of JSON that begins with RESULT, which ``card.py`` brings home.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import streamkern as sk
from streamkern.engine.residuals import SquaredLoss
from streamkern.errors import UsageError
from streamkern.gpu import get_device
from streamkern.gpu.engine import DeviceEngine
from streamkern.gpu.loops import BlockTarget
from streamkern.kernels import Expansion

ROWS, CENTERS, OUTPUTS = 4096, 10_000, 10
STEP_ROWS = 16_384
PREPARED = 500  # eigenpairs of the preconditioner


def event_ms(device: Any, call: Callable[[], Any], repeats: int = 7) -> float:
    """Median milliseconds of a call by the card's events, in the computing stream."""
    import cupy

    times = []
    with device.turn():
        call()
        for _ in range(repeats):
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, stop))
    return float(np.median(times))


def wall_us(call: Callable[[], Any], done: Callable[[], Any], repeats: int = 200) -> float:
    """Microseconds of Python for a call, of many at a time, without waiting for the card in between."""
    call()
    done()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    spent = time.perf_counter() - start
    done()
    return 1e6 * spent / repeats


def random(device: Any, *shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Normal numbers on the card."""
    import cupy

    return cupy.random.default_rng(seed).standard_normal(shape, dtype=dtype)


def ceilings(device: Any) -> dict[str, Any]:
    """Rates of the card, and errors of its products."""
    import cupy

    found: dict[str, Any] = {
        "card": device.name, "description": device.describe(), "python": platform.python_version(),
        "numpy": np.__version__, "cupy": cupy.__version__,
        "driver": cupy.cuda.runtime.driverGetVersion(), "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "sgemm_8192": device.gemm_rate(),
    }  # fmt: skip
    loops = device.loops
    for n, p, d in ((ROWS, CENTERS, 784), (ROWS, CENTERS, 100), (ROWS, CENTERS, 18), (STEP_ROWS, CENTERS, 784)):
        with device.turn():
            X, Z = random(device, n, d), random(device, p, d, seed=1)
            A, B = loops.split_halves(X, False), loops.split_halves(Z, True)
            ways = {
                "sgemm": lambda X=X, Z=Z: X @ Z.T,
                "halves": lambda A=A, B=B: device.half_product(A.numbers, B.numbers),
                "split": lambda X=X: loops.split_halves(X, False),
                "norms": lambda X=X: loops.row_norms(X),
            }
        times = {name: event_ms(device, call) for name, call in ways.items()}
        found[f"product {n} x {p} x {d}, ms"] = times
        print(f"{n:>6} x {p} x {d:<5}" + "".join(f"{name} {ms:8.3f} ms   " for name, ms in times.items()), flush=True)
    for name, spread in (("normal", None), ("positive", 1.0), ("with outliers", 1e3)):
        rng = np.random.default_rng(2)
        X, Z = rng.normal(size=(512, 784)), rng.normal(size=(2048, 784))
        if spread == 1.0:
            X, Z = np.abs(X), np.abs(Z)
        elif spread:
            X[:, 0] *= spread
            Z[:, 0] *= spread
        Z[:256] = X[:256] + 0.02 * rng.normal(size=(256, 784))  # near rows, where distances lose most
        X, Z = X.astype(np.float32), Z.astype(np.float32)
        wide = X.astype(np.float64) @ Z.astype(np.float64).T
        sizes = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(Z, axis=1)
        exact = Expansion(sk.Laplace(float(np.median(sizes) ** 0.5)), Z.astype(np.float64)).block(X.astype(np.float64))
        errors = {}
        for way in (False, True):
            device.splits = way
            there = Expansion(sk.Laplace(float(np.median(sizes) ** 0.5)), Z, DeviceEngine(device))
            with device.turn():
                S, sides = there.engine._inner(there, device.put(X))
                P = device.take(S).astype(np.float64)
                if sides.x_factors is not None:
                    P *= device.take(sides.x_factors)[:, None] * device.take(sides.z_factors)
            K = there.block(X)
            far = np.ones_like(exact, dtype=bool)
            far[np.arange(256), np.arange(256)] = False
            errors["halves" if way else "sgemm"] = {
                "product": float((np.abs(P - wide) / sizes).max()),
                "value": float(np.abs(K - exact)[far].max()),
                "value of near rows": float(np.abs(K - exact)[~far].max()),
            }
        found[f"errors, {name}"] = errors
        print(f"{name:14} {errors}", flush=True)
    big = 1 << 30
    with device.turn():
        a, b = cupy.empty(big, np.uint8), cupy.empty(big, np.uint8)
    found["copy, bytes/s"] = 2 * big / (1e-3 * event_ms(device, lambda: cupy.copyto(a, b)))
    import cupyx

    pinned, plain, part = cupyx.empty_pinned((1 << 28,), np.uint8), np.ones(1 << 28, np.uint8), a[: 1 << 28]
    found["to the card from pinned memory, bytes/s"] = (1 << 28) / (
        1e-3 * event_ms(device, lambda: part.set(pinned, stream=device._computing))
    )
    found["from the card to pinned memory, bytes/s"] = (1 << 28) / (
        1e-3 * event_ms(device, lambda: part.get(stream=device._computing, out=pinned, blocking=False))
    )
    for name, call in (("put", lambda: device.put(plain)), ("take", lambda: device.take(part))):
        call()
        start = time.perf_counter()
        call()
        device._computing.synchronize()
        found[f"{name} of 256 MiB, bytes/s"] = (1 << 28) / (time.perf_counter() - start)
    with device.turn():
        small, few = random(device, 32, 8), np.arange(64)
        done = device._computing.synchronize
        found["launch, us"] = wall_us(lambda: loops.row_norms(small), done)
        found["product, us"] = wall_us(lambda: small @ small.T, done)
        found["small copy to the card, us"] = wall_us(lambda: cupy.asarray(few), done)
        found["small copy to the host with a wait, us"] = wall_us(lambda: small.get(), done)
    for name, value in found.items():
        if not isinstance(value, dict):
            print(f"{name:45} {value if isinstance(value, str) else f'{value:.4g}'}")
    return found


def blocks(device: Any) -> dict[str, Any]:
    """A block forward and transposed, at several widths and numbers of outputs."""
    found: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    print(f"{'d':>5}{'c':>5}{'sgemm ms':>11}{'block ms':>11}{'unsplit ms':>11}{'of sgemm':>10}{'M rows/s':>10}")
    for d in (18, 64, 100, 784, 3072):
        for c in (1, OUTPUTS, 100):
            with device.turn():
                X, Z = random(device, STEP_ROWS, d), random(device, CENTERS, d, seed=1)
                W = 1e-2 * random(device, CENTERS, c, seed=2)
            respond = SquaredLoss(rng.integers(0, c, STEP_ROWS), None)
            times = {"sgemm": event_ms(device, lambda X=X, Z=Z: X @ Z.T)}
            for way in (False, True):
                device.splits = way
                there = Expansion(sk.Laplace(float(np.sqrt(2 * d))), device.take(Z), DeviceEngine(device, alone=True))
                call = partial(there.pull, X, W, respond, c)
                times["block" if way else "unsplit"] = event_ms(device, call)
            found[f"d={d} c={c}"] = times
            best = min(times["block"], times["unsplit"])
            print(
                f"{d:>5}{c:>5}{times['sgemm']:>11.3f}{times['block']:>11.3f}{times['unsplit']:>11.3f}"
                f"{times['sgemm'] / best:>10.2f}{STEP_ROWS / best / 1e3:>10.2f}",
                flush=True,
            )
    for d in (18, 784):
        X, Z = (rng.normal(size=(n, d)).astype(np.float32) for n in (ROWS, CENTERS))
        W = rng.normal(size=(CENTERS, OUTPUTS)).astype(np.float32)
        signs = rng.choice([-1.0, 1.0], (ROWS, OUTPUTS)).astype(np.float32)
        engine = DeviceEngine(device)
        near, far = Expansion(sk.Laplace(float(np.sqrt(2 * d))), Z, engine), Expansion(sk.Laplace(d, norm=1), Z, engine)
        calls = {
            "L1 block": partial(far.pull, X, W, lambda F, part: F, OUTPUTS),
            "gradients": partial(engine.gradients, near, X, W, signs),
            "L1 gradients": partial(engine.gradients, far, X, W, signs),
        }
        for name, call in calls.items():
            found[f"{name} d={d}"] = ms = event_ms(device, call, 3)
            print(f"{name:16} d={d:<5} {ms:9.2f} ms", flush=True)
    return found


def steps(device: Any) -> dict[str, Any]:
    """A step of EigenPro with exact projection on Fashion-MNIST's shape, by its parts."""
    found: dict[str, Any] = {}
    d, c, p = 784, OUTPUTS, CENTERS
    rng = np.random.default_rng(0)
    device.splits = True
    with device.turn():
        raw = device.put(rng.integers(0, 256, (60_000, d)).astype(np.uint8))
        Z = rng.normal(size=(p, d)).astype(np.float32)
        W, g = 1e-2 * random(device, p, c), random(device, p, c, seed=1)
        scale, offset = (device.put(np.full(d, v, np.float32)) for v in (1 / 255, -0.3))
    there = Expansion(sk.Laplace(20.0), Z, DeviceEngine(device, alone=True))
    L = np.tril(rng.normal(size=(p, p)).astype(np.float32))
    placed = there.engine.place_projection(L, rng.normal(size=(PREPARED, 2000)).astype(np.float32))
    ids, copies = rng.integers(0, 60_000, STEP_ROWS), rng.integers(0, 2000, STEP_ROWS)
    y = rng.integers(0, c, STEP_ROWS)

    def rows() -> Any:
        return device.rows(raw, ids, scale=scale, offset=offset, ids=ids, copies=copies, noise=(3, 0.1))

    loops, mean = device.loops, device.put(np.zeros((p, c)))
    X = rows()
    S, sides = there.engine._inner(there, X)
    with device.turn():
        target = BlockTarget(device.put(y))
        r, _ = loops.outputs(S, sides, W, target)
    parts: dict[str, Callable[[], Any]] = {
        "rows": rows,
        "split": lambda: loops.split_halves(X, False),
        "product": lambda: there.engine._inner(there, X),
        "outputs": lambda: loops.outputs(S, sides, W, target),
        "pulled": lambda: loops.pulled(S, sides, r),
        "values": lambda: loops.values(S, sides),
        "project": lambda: there.engine.project(placed, g),
        "moved": lambda: loops.moved(W, W, mean, g, 0.1, 0.9, 0.1, 0.2),
    }

    def whole() -> None:
        block = rows()
        gradient = there.pull(block, W, SquaredLoss(y, None), c)
        loops.moved(W, W, mean, there.engine.project(placed, gradient), 0.1, 0.9, 0.1, 0.2)

    for name, call in (parts | {"whole": whole}).items():
        ms = event_ms(device, call)
        us = wall_us(call, device._computing.synchronize, 20)
        found[name] = {"ms": ms, "python_us": us}
        print(f"{name:10} {ms:9.3f} ms on the card   {us:9.1f} us until the call returns", flush=True)
    seconds = 1e-3 * found["whole"]["ms"]
    print(
        f"{STEP_ROWS / seconds / 1e6:.2f} million rows a second; 120,000,000 rows {120e6 / STEP_ROWS * seconds:.1f} s"
    )
    return found


COMMANDS = {"ceilings": ceilings, "blocks": blocks, "steps": steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    command = parser.parse_args().command
    try:
        device = get_device("cuda")
    except UsageError as error:
        print(error)
        return 1
    found = COMMANDS[command](device)
    print("RESULT " + json.dumps({command: found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
