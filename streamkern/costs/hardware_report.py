"""Report the hardware, its speed, the share of it that the engine reaches, and changes that would make it faster."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info, threadpool_limits

from streamkern.costs.machine_speed import gemm_rate, timings
from streamkern.cpu import gemm
from streamkern.defaults import REPORT_CENTERS, REPORT_OUTPUTS, REPORT_WIDTHS
from streamkern.engine.base import ROW_TILE
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

    ``rates`` of one thread: ``gemm`` of BLAS in float32 operations a second, ``copy`` in bytes read and written a
    second, and ``copy_all_threads``; ``engine``, a kernel block by number of features ``d``: ``values`` a second and
    thread, and the share of BLAS's rate that its inner products reach, ``of_gemm``; ``threads_gain``: how many times as
    much all threads compute as one; and ``advice``, in words. ``gpu`` is the device, or the reason why it cannot be
    used.
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
    try:
        device = get_device("cuda")
        gpu = "none" if device is None else device.describe()
    except UsageError as error:
        gpu = f"none: {error.what}"
    processor = Path("/proc/cpuinfo")
    found: dict[str, Any] = {
        "version": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version_of(name) for name in _PACKAGES},
        "cores": {"process": cores, "machine": os.cpu_count()},
        "avx512": processor.exists() and "avx512f" in processor.read_text(encoding="utf-8").split(),
        "memory": {"total": memory.total, "free": memory.available, "budget": default_budget()},
        "blas": libraries,
        "gpu": gpu,
    }
    with threadpool_limits(1, user_api="blas"):
        found |= _measured(cores)
    found["advice"] = _advice(found)
    return found


def _measured(cores: int) -> dict[str, Any]:
    gemm = gemm_rate()
    rng = np.random.default_rng(0)
    W = np.ones((REPORT_CENTERS, REPORT_OUTPUTS), np.float32)
    copied_bytes = 64 << 20  # which no cache near a core holds
    a, b = (np.ones(copied_bytes // 8) for _ in range(2))
    cuts = [slice(k * len(a) // cores, (k + 1) * len(a) // cores) for k in range(cores)]
    engine: list[dict[str, float]] = []
    with ThreadPoolExecutor(cores) as pool:

        def seconds(call: Callable[[int], Any], number: int) -> float:
            return min(timings(lambda: list(pool.map(call, range(number))), time.perf_counter))

        copies = {
            "copy": 2 * copied_bytes / min(timings(lambda: np.copyto(a, b), time.perf_counter)),
            "copy_all_threads": 2 * copied_bytes / seconds(lambda k: np.copyto(a[cuts[k]], b[cuts[k]]), cores),
        }
        for d in REPORT_WIDTHS:
            Z, X = (rng.standard_normal((n, d), dtype=np.float32) for n in (REPORT_CENTERS, ROW_TILE))
            predict = partial(Expansion(Laplace(float(np.sqrt(2 * d))), Z).predict, X, W)
            values = X.shape[0] * REPORT_CENTERS / min(timings(predict, time.thread_time))
            engine.append({"d": d, "values": values, "of_gemm": 2.0 * d * values / gemm})
        gain = cores * seconds(lambda _: predict(), 1) / seconds(lambda _: predict(), cores)
    return {"rates": {"gemm": gemm, **copies}, "engine": engine, "threads_gain": gain}


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
        f"GEMM       {rates['gemm'] / 1e9:.0f} GFLOP/s in float32 on one thread by BLAS",
        f"copying    {rates['copy'] / 1e9:.1f} GB/s of memory on one thread, "
        f"{rates['copy_all_threads'] / 1e9:.1f} on all",
    ]
    for shape in found["engine"]:
        lines.append(
            f"engine     d = {shape['d']:<4} {shape['values'] / 1e6:7.0f} M values/s a thread: {shape['of_gemm']:.0%} "
            "of BLAS's GEMM rate"
        )
    lines += [
        f"GPU        {found['gpu']}",
        f"threads    all {cores} compute {found['threads_gain']:.2f} times as much as one",
        *("advice     " + advice.replace("\n", "\n           ") for advice in found["advice"]),
    ]
    return "\n".join(lines) + "\n"
