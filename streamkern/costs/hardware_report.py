"""Report the hardware, its speed, the share of it that the engine reaches, and changes that would make it faster."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info, threadpool_limits

from streamkern.costs.machine_speed import gemm_rate, timings
from streamkern.cpu import gemm
from streamkern.defaults import REPORT_CENTERS, REPORT_OUTPUTS, REPORT_WIDTHS
from streamkern.engine.base import CENTER_TILE, ROW_TILE
from streamkern.errors import UsageError
from streamkern.gpu import get_device
from streamkern.kernels import Expansion, Laplace
from streamkern.memory import default_budget, format_bytes
from streamkern.resources import default_threads
from streamkern.version import VERSION, version_of

_PACKAGES = ("numpy", "scipy", "numba", "zarr", "pyarrow", "dask", "scikit-learn")
_KERNELS_WITHOUT_AVX512 = ("Haswell", "Zen", "Sandybridge", "Prescott")  # OpenBLAS's kernels without AVX-512
_CORETYPE = "SKYLAKEX"


def measure_machine() -> dict[str, Any]:
    """Look at this machine and measure it, for a few seconds.

    ``rates`` of one thread: ``gemm`` of BLAS and ``engine_gemm`` in float32 operations a second, ``elementwise`` in
    values exp(−‖x − z‖/σ) a second from inner products, ``copy`` in bytes read and written a second, and
    ``copy_all_threads``; ``engine``, a kernel block by number of features ``d``: ``values`` a second and thread,
    ``of_gemm`` BLAS's rate for its inner products, ``of_floor`` what its matrix product and elementwise part take
    alone; ``threads_gain``: how many times as much all threads compute as one; and ``advice``, in words. ``gpu`` is the
    device, or the reason why it cannot be used.
    """
    cores, memory = default_threads(), psutil.virtual_memory()
    libraries = [
        {
            "name": found["internal_api"],
            "version": found["version"],
            "kernels": found.get("architecture"),
            "threads": found["num_threads"],
            "file": Path(found["filepath"]).name,
        }
        for found in threadpool_info()
        if found["user_api"] == "blas"
    ]
    found: dict[str, Any] = {
        "version": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version_of(name) for name in _PACKAGES},
        "cores": {"process": cores, "machine": os.cpu_count()},
        "avx512": _has_avx512(),
        "memory": {"total": memory.total, "free": memory.available, "budget": default_budget()},
        "blas": libraries,
        "gpu": _gpu(),
    }
    with threadpool_limits(1, user_api="blas"):
        found |= _measured(cores)
    found["advice"] = _advice(found)
    return found


def _measured(cores: int) -> dict[str, Any]:
    gemm, gain = gemm_rate(), 0.0
    own = elementwise = 0.0
    engine: list[dict[str, float]] = []
    for d in REPORT_WIDTHS:
        parts = _block_seconds(d, cores)
        of_blas = parts["operations"] / gemm
        if parts["product"] is not None:
            own = parts["operations"] / parts["product"]
        multiplied = min(of_blas, parts["product"] or of_blas)
        elementwise, gain = 1.0 / parts["value"], parts["gain"]
        floor, block = multiplied * (1 + REPORT_OUTPUTS / d) + parts["value"], parts["block"]
        engine.append({"d": d, "values": 1.0 / block, "of_gemm": of_blas / block, "of_floor": floor / block})
    copied_bytes = 64 << 20  # which no cache near a core holds
    a, b = (np.ones(copied_bytes // 8) for _ in range(2))
    cuts = [slice(k * len(a) // cores, (k + 1) * len(a) // cores) for k in range(cores)]
    with ThreadPoolExecutor(cores) as pool:

        def everywhere() -> None:
            list(pool.map(lambda cut: np.copyto(a[cut], b[cut]), cuts))

        copies = {
            "copy": 2 * copied_bytes / _fastest(lambda: np.copyto(a, b), time.perf_counter),
            "copy_all_threads": 2 * copied_bytes / _fastest(everywhere, time.perf_counter),
        }
    rates = {"gemm": gemm, "engine_gemm": own or gemm, "elementwise": elementwise, **copies}
    return {"rates": rates, "engine": engine, "threads_gain": gain}


def _block_seconds(d: int, cores: int) -> dict[str, Any]:
    """Seconds of a value of a block of d features: whole, and its parts alone; and the gain from all threads."""
    rng = np.random.default_rng(0)
    Z, X = (rng.standard_normal((n, d), dtype=np.float32) for n in (REPORT_CENTERS, ROW_TILE))
    W = np.ones((REPORT_CENTERS, REPORT_OUTPUTS), np.float32)
    expansion, packed, cols = Expansion(Laplace(float(np.sqrt(2 * d))), Z), gemm.pack(Z), slice(0, CENTER_TILE)
    loops = expansion.engine.loops
    S, norms, centers = X @ Z[cols].T, loops.row_norms(X), loops.row_norms(Z[cols])

    def values() -> None:
        expansion.kernel.apply(S, norms, centers, loops)

    return {
        "operations": 2.0 * d,
        "block": _fastest(lambda: expansion.predict(X, W)) / (len(X) * REPORT_CENTERS),
        "value": _fastest(values) / S.size,
        "product": None if packed is None else _fastest(lambda: gemm.inner(X, packed, cols, S)) / S.size,
        "gain": _threads_gain(expansion, X, W, cores) if d == REPORT_WIDTHS[-1] else 1.0,
    }


def _threads_gain(expansion: Expansion, X: np.ndarray[Any, Any], W: np.ndarray[Any, Any], cores: int) -> float:
    with ThreadPoolExecutor(cores) as pool:

        def blocks(number: int) -> float:
            return _fastest(lambda: list(pool.map(lambda _: expansion.predict(X, W), range(number))), time.perf_counter)

        return cores * blocks(1) / blocks(cores)


def _fastest(call: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> float:
    return min(timings(call, clock))


def _advice(found: dict[str, Any]) -> list[str]:
    advice = []
    older = [library for library in found["blas"] if library["kernels"] in _KERNELS_WITHOUT_AVX512]
    if found["avx512"] and older:
        advice.append(
            f"OpenBLAS runs {older[0]['kernels']} kernels and this processor has AVX-512: try\n"
            f"  export OPENBLAS_CORETYPE={_CORETYPE}\n"
            "and see whether GEMM is faster here (up to 2x). Kernel blocks do not need it, factorisations and\n"
            "projections do. The last bits of trained weights will differ."
        )
    if not gemm.VECTORS:
        advice.append("This processor has no fused multiply-add that is known: BLAS computes all products.")
    if found["cores"]["process"] > 1 and found["threads_gain"] < 0.8 * found["cores"]["process"]:
        advice.append(
            f"All {found['cores']['process']} threads compute only {found['threads_gain']:.2f} times as much as one:\n"
            "other processes are busy, or the cores share their arithmetic units."
        )
    return advice


def doctor_text(found: dict[str, Any]) -> str:
    """Format the result of ``measure_machine`` for a terminal."""
    memory, rates, cores = found["memory"], found["rates"], found["cores"]["process"]
    lines = [
        f"streamkern {found['version']}, Python {found['python']}, {found['system']}",
        "packages   " + ", ".join(f"{name} {number}" for name, number in found["packages"].items()),
        f"cores      {cores} of {found['cores']['machine']} for this process" + (", with AVX-512" * found["avx512"]),
        f"memory     {format_bytes(memory['total'])}, of which {format_bytes(memory['free'])} are free; a run may use "
        f"{format_bytes(memory['budget'])} unless --memory says otherwise",
    ]
    for library in found["blas"]:
        kernels = "" if library["kernels"] is None else f", {library['kernels']} kernels"
        lines.append(
            f"BLAS       {library['name']} {library['version']}{kernels}, {library['threads']} threads, of which "
            f"a task uses 1 ({library['file']})"
        )
    lines += [
        f"GEMM       {rates['gemm'] / 1e9:.0f} GFLOP/s in float32 on one thread by BLAS, "
        f"{rates['engine_gemm'] / 1e9:.0f} by the engine",
        f"values     {rates['elementwise'] / 1e9:.2f} G/s of exp(-r/sigma) from inner products on one thread",
        f"copying    {rates['copy'] / 1e9:.1f} GB/s of memory on one thread, "
        f"{rates['copy_all_threads'] / 1e9:.1f} on all",
    ]
    for shape in found["engine"]:
        lines.append(
            f"engine     d = {shape['d']:<4} {shape['values'] / 1e6:7.0f} M values/s a thread: {shape['of_gemm']:.0%} "
            f"of BLAS's GEMM rate, {shape['of_floor']:.0%} of its floor (product and exponentials, each alone)"
        )
    lines.append(f"GPU        {found['gpu']}")
    lines.append(f"threads    all {cores} compute {found['threads_gain']:.2f} times as much as one")
    for advice in found["advice"]:
        lines.append("advice     " + advice.replace("\n", "\n           "))
    return "\n".join(lines) + "\n"


def _gpu() -> str:
    try:
        device = get_device("cuda")
    except UsageError as error:
        return f"none: {error.what}"
    assert device is not None
    return device.describe()


def _has_avx512() -> bool:
    try:
        return "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
