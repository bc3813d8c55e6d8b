"""What a card does: its ceilings, the parts of a block, and the parts of a step.

    python tests/benchmarks/gpu.py ceilings     # products in float32 and of halves, with their errors; copies; launches
    python tests/benchmarks/gpu.py blocks       # a block against the card's float32 product; L1 distances; gradients
    python tests/benchmarks/gpu.py steps        # a step of EigenPro by its parts: the card's time, and Python's

Times are medians of at least seven, by the card's own events unless it says otherwise, on random numbers; of short
calls they are Python's. A block is compared with the float32 product of its inner products alone. Each command prints a
table, and last one line of JSON that begins with RESULT, which ``card.py`` brings home. ``tests/engine/test_card.py``
calls each of them with small numbers.
"""

from __future__ import annotations

import argparse
import json
import operator
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import streamkern as sk
from streamkern.engine.residuals import SquaredLoss
from streamkern.errors import UsageError
from streamkern.gpu import get_device
from streamkern.gpu.engine import DeviceEngine
from streamkern.gpu.loops import BlockTarget
from streamkern.kernels import Expansion


class Sizes(NamedTuple):
    """Numbers of what is timed.

    Attributes:
        rows: of a small block.
        step_rows: of a step's block.
        centers: of each block.
        outputs: of a step.
        d: features of a step, as of Fashion-MNIST.
        widths: features of the blocks.
        square: rows and columns of the product that gives the card's rate.
        compared: rows and centers whose values are compared with float64's.
        near: rows among these next to a center.
        stored: rows of which a step takes some.
        prepared: eigenpairs of the preconditioner, and the centers that they are of.
        copied: bytes copied on the card.
        sent: bytes copied between host and card.
        repeats: calls for a median.
    """

    rows: int = 4096
    step_rows: int = 16_384
    centers: int = 10_000
    outputs: int = 10
    d: int = 784
    widths: tuple[int, ...] = (18, 64, 100, 784, 3072)
    square: int = 8192
    compared: tuple[int, int] = (512, 2048)
    near: int = 256
    stored: int = 60_000
    prepared: tuple[int, int] = (500, 2000)
    copied: int = 1 << 30
    sent: int = 1 << 28
    repeats: int = 7


def event_ms(device: Any, call: Callable[[], Any], repeats: int) -> float:
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


def wall_us(call: Callable[[], Any], done: Callable[[], Any], repeats: int) -> float:
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


def ceilings(device: Any, sizes: Sizes) -> dict[str, Any]:
    """Rates of the card, errors of its products, and what copies and calls take."""
    import cupy

    found: dict[str, Any] = {
        "card": device.name, "description": device.describe(), "python": platform.python_version(),
        "numpy": np.__version__, "cupy": cupy.__version__,
        "driver": cupy.cuda.runtime.driverGetVersion(), "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        f"sgemm_{sizes.square}": device.gemm_rate(sizes.square),
    }  # fmt: skip
    found |= products(device, sizes) | errors_of_products(device, sizes) | copies_and_calls(device, sizes)
    for name, value in found.items():
        if not isinstance(value, dict):
            print(f"{name:45} {value if isinstance(value, str) else f'{value:.4g}'}")
    return found


def products(device: Any, sizes: Sizes) -> dict[str, Any]:
    """Products in float32 and of halves, and what halves are made from."""
    found, loops, p = dict[str, Any](), device.loops, sizes.centers
    for n, d in ((sizes.rows, sizes.d), (sizes.rows, 100), (sizes.rows, 18), (sizes.step_rows, sizes.d)):
        with device.turn():
            X, Z = random(device, n, d), random(device, p, d, seed=1)
            A, B = loops.split_halves(X, False), loops.split_halves(Z, True)
            ways: dict[str, Callable[[], Any]] = {
                "sgemm": partial(operator.matmul, X, Z.T),
                "halves": partial(device.half_product, A.numbers, B.numbers),
                "split": partial(loops.split_halves, X, False),
                "norms": partial(loops.row_norms, X),
            }
        times = {name: event_ms(device, call, sizes.repeats) for name, call in ways.items()}
        found[f"product {n} x {p} x {d}, ms"] = times
        print(f"{n:>6} x {p} x {d:<5}" + "".join(f"{name} {ms:8.3f} ms   " for name, ms in times.items()), flush=True)
    return found


def errors_of_products(device: Any, sizes: Sizes) -> dict[str, Any]:
    """Errors of both ways to multiply, against float64."""
    found, (n, p), d, near = dict[str, Any](), sizes.compared, sizes.d, sizes.near
    for name, spread in (("normal", None), ("positive", 1.0), ("with outliers", 1e3)):
        rng = np.random.default_rng(2)
        X, Z = rng.normal(size=(n, d)), rng.normal(size=(p, d))
        if spread == 1.0:
            X, Z = np.abs(X), np.abs(Z)
        elif spread:
            X[:, 0] *= spread
            Z[:, 0] *= spread
        Z[:near] = X[:near] + 0.02 * rng.normal(size=(near, d))  # near rows, where distances lose most
        X, Z = X.astype(np.float32), Z.astype(np.float32)
        wide = X.astype(np.float64) @ Z.astype(np.float64).T
        norms = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(Z, axis=1)
        kernel = sk.Laplace(float(np.median(norms) ** 0.5))
        exact = Expansion(kernel, Z.astype(np.float64)).block(X.astype(np.float64))
        errors = {}
        for way in (False, True):
            device.splits = way
            engine = DeviceEngine(device)
            there = Expansion(kernel, Z, engine)
            with device.turn():
                S, sides = engine._inner(there, device.put(X))
                P = device.take(S).astype(np.float64)
                if sides.x_factors is not None:
                    P *= device.take(sides.x_factors)[:, None] * device.take(sides.z_factors)
            K = there.block(X)
            far = np.ones_like(exact, dtype=bool)
            far[np.arange(near), np.arange(near)] = False
            errors["halves" if way else "sgemm"] = {
                "product": float((np.abs(P - wide) / norms).max()),
                "value": float(np.abs(K - exact)[far].max()),
                "value of near rows": float(np.abs(K - exact)[~far].max()),
            }
        found[f"errors, {name}"] = errors
        print(f"{name:14} {errors}", flush=True)
    return found


def copies_and_calls(device: Any, sizes: Sizes) -> dict[str, Any]:
    """Bytes a second of copies, and Python's microseconds of short calls."""
    import cupy
    import cupyx

    found, loops, size = dict[str, Any](), device.loops, sizes.sent
    with device.turn():
        a, b = cupy.empty((sizes.copied,), np.uint8), cupy.empty((sizes.copied,), np.uint8)
    ms = event_ms(device, partial(cupy.copyto, a, b), sizes.repeats)
    found["copy, bytes/s"] = 2 * sizes.copied / (1e-3 * ms)
    pinned, plain, part = cupyx.empty_pinned((size,), np.uint8), np.ones(size, np.uint8), a[:size]
    ways: dict[str, Callable[[], Any]] = {
        "to the card from": partial(part.set, pinned, stream=device._computing),
        "from the card to": partial(part.get, stream=device._computing, out=pinned, blocking=False),
    }
    for name, call in ways.items():
        found[f"{name} pinned memory, bytes/s"] = size / (1e-3 * event_ms(device, call, sizes.repeats))
    for name, call in (("put", partial(device.put, plain)), ("take", partial(device.take, part))):
        call()
        start = time.perf_counter()
        call()
        device._computing.synchronize()
        found[f"{name} of {size >> 20} MiB, bytes/s"] = size / (time.perf_counter() - start)
    with device.turn():
        small, few = random(device, 32, 8), np.arange(64)
        calls: dict[str, Callable[[], Any]] = {
            "launch": partial(loops.row_norms, small),
            "product": partial(operator.matmul, small, small.T),
            "small copy to the card": partial(cupy.asarray, few),
            "small copy to the host with a wait": small.get,
        }
        for name, call in calls.items():
            found[f"{name}, us"] = wall_us(call, device._computing.synchronize, 200)
    return found


def blocks(device: Any, sizes: Sizes) -> dict[str, Any]:
    """A block forward and transposed, at several widths and numbers of outputs."""
    found: dict[str, Any] = {}
    rng, n, p = np.random.default_rng(0), sizes.step_rows, sizes.centers
    print(f"{'d':>5}{'c':>5}{'sgemm ms':>11}{'block ms':>11}{'unsplit ms':>11}{'of sgemm':>10}{'M rows/s':>10}")
    for d in sizes.widths:
        for c in (1, sizes.outputs, 100):
            with device.turn():
                X, Z = random(device, n, d), random(device, p, d, seed=1)
                W = 1e-2 * random(device, p, c, seed=2)
            respond = SquaredLoss(rng.integers(0, c, n), None)
            times = {"sgemm": event_ms(device, partial(operator.matmul, X, Z.T), sizes.repeats)}
            for way in (False, True):
                device.splits = way
                engine = DeviceEngine(device, alone=True)
                there = Expansion(sk.Laplace(float(np.sqrt(2 * d))), device.take(Z), engine)
                call = partial(engine.pull, there, X, W, respond, c)
                times["block" if way else "unsplit"] = event_ms(device, call, sizes.repeats)
            found[f"d={d} c={c}"] = times
            best = min(times["block"], times["unsplit"])
            print(
                f"{d:>5}{c:>5}{times['sgemm']:>11.3f}{times['block']:>11.3f}{times['unsplit']:>11.3f}"
                f"{times['sgemm'] / best:>10.2f}{n / best / 1e3:>10.2f}",
                flush=True,
            )
    for d in (18, sizes.d):
        X, Z = (rng.normal(size=(k, d)).astype(np.float32) for k in (sizes.rows, p))
        W = rng.normal(size=(p, sizes.outputs)).astype(np.float32)
        signs = rng.choice([-1.0, 1.0], (sizes.rows, sizes.outputs)).astype(np.float32)
        engine = DeviceEngine(device)
        near, far = Expansion(sk.Laplace(float(np.sqrt(2 * d))), Z, engine), Expansion(sk.Laplace(d, norm=1), Z, engine)
        calls = {
            "L1 block": partial(engine.pull, far, X, W, lambda F, part: F, sizes.outputs),
            "gradients": partial(engine.gradients, near, X, W, signs),
            "L1 gradients": partial(engine.gradients, far, X, W, signs),
        }
        for name, call in calls.items():
            found[f"{name} d={d}"] = ms = event_ms(device, call, 3)
            print(f"{name:16} d={d:<5} {ms:9.2f} ms", flush=True)
    return found


def steps(device: Any, sizes: Sizes) -> dict[str, Any]:
    """A step of EigenPro with exact projection on Fashion-MNIST's shape, by its parts."""
    found: dict[str, Any] = {}
    n, d, c, p, stored = sizes.step_rows, sizes.d, sizes.outputs, sizes.centers, sizes.stored
    rng = np.random.default_rng(0)
    device.splits = True
    with device.turn():
        raw = device.put(rng.integers(0, 256, (stored, d)).astype(np.uint8))
        Z = rng.normal(size=(p, d)).astype(np.float32)
        W, g = 1e-2 * random(device, p, c), random(device, p, c, seed=1)
        scale, offset = (device.put(np.full(d, v, np.float32)) for v in (1 / 255, -0.3))
    engine = DeviceEngine(device, alone=True)
    there = Expansion(sk.Laplace(20.0), Z, engine)
    L = np.tril(rng.normal(size=(p, p)).astype(np.float32))
    placed = engine.place_projection(L, rng.normal(size=sizes.prepared).astype(np.float32))
    ids, copies = rng.integers(0, stored, n), rng.integers(0, 2000, n)
    y = rng.integers(0, c, n)

    def rows() -> Any:
        return device.rows(raw, ids, scale=scale, offset=offset, ids=ids, copies=copies, noise=(3, 0.1))

    loops, mean = device.loops, device.put(np.zeros((p, c)))
    X = rows()
    S, sides = engine._inner(there, X)
    with device.turn():
        target = BlockTarget(device.put(y))
        r, _ = loops.outputs(S, sides, W, target)
    parts: dict[str, Callable[[], Any]] = {
        "rows": rows,
        "split": lambda: loops.split_halves(X, False),
        "product": lambda: engine._inner(there, X),
        "outputs": lambda: loops.outputs(S, sides, W, target),
        "pulled": lambda: loops.pulled(S, sides, r),
        "values": lambda: loops.values(S, sides),
        "project": lambda: engine.project(placed, g),
        "moved": lambda: loops.moved(W, W, mean, g, 0.1, 0.9, 0.1, 0.2),
    }

    def whole() -> None:
        block = rows()
        gradient = engine.pull(there, block, W, SquaredLoss(y, None), c)
        loops.moved(W, W, mean, engine.project(placed, gradient), 0.1, 0.9, 0.1, 0.2)

    for name, call in (parts | {"whole": whole}).items():
        ms = event_ms(device, call, sizes.repeats)
        us = wall_us(call, device._computing.synchronize, 20)
        found[name] = {"ms": ms, "python_us": us}
        print(f"{name:10} {ms:9.3f} ms on the card   {us:9.1f} us until the call returns", flush=True)
    seconds = 1e-3 * found["whole"]["ms"]
    print(f"{n / seconds / 1e6:.2f} million rows a second; 120,000,000 rows {120e6 / n * seconds:.1f} s")
    return found


COMMANDS: dict[str, Callable[[Any, Sizes], dict[str, Any]]] = {"ceilings": ceilings, "blocks": blocks, "steps": steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    command = parser.parse_args().command
    try:
        device = get_device("cuda")
    except UsageError as error:
        print(error)
        return 1
    found = COMMANDS[command](device, Sizes())
    print("RESULT " + json.dumps({command: found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
