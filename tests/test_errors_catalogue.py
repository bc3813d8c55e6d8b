"""Every error of the package: what it says, and that somebody has provoked it.

A site is a place in the package where a ``StreamkernError`` is made. Each says where, what was expected, and what to
do, which for an argument is to pass what was expected. Each is provoked here, or by a test that ``ELSEWHERE`` or
``MODULES`` names: those need a full disk, a dead worker, a server or a damaged file. What no test comes to is in
``UNTESTED``.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr as zarr_python

import streamkern as sk
from streamkern import errors
from streamkern.commands.parser import main
from streamkern.cpu import default_engine
from streamkern.data import Quarantined
from streamkern.data.row_order import Assembly
from streamkern.engine.elementwise import Loops
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource
from streamkern.kernels import feature_map_from_json, kernel_from_json
from streamkern.kernels.base import Sum
from streamkern.precondition.eigensystem import top_eigensystem
from streamkern.precondition.lanczos import speedup_ratio
from streamkern.precondition.randomized_svd import randomized_eigensystem
from streamkern.registry.promotion_gate import Gate
from streamkern.runs.solution_spectrum import effective_dimension, rayleigh_quotient
from streamkern.storage.serialize import unflatten
from streamkern.sweep import gather

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "streamkern"
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
KINDS |= {"UnlikeChampionError", "NoRowsError"}


@dataclass(frozen=True)
class Site:
    """Where an error is made: the file below the package, its lines, and the words its message begins with."""

    file: str
    first: int
    last: int
    kind: str
    begins: str
    keywords: frozenset[str]

    def __str__(self) -> str:
        return f"{self.file}: {self.begins[:50]}".strip()


def _begins(node: ast.expr) -> str:
    """A message up to the first value in it, or its expression."""
    if isinstance(node, ast.JoinedStr):
        first = node.values[0]
        if isinstance(first, ast.Constant):
            return str(first.value).strip()
        rest = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
        return f"... {rest[0].strip()}" if rest else ast.unparse(node)
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


@functools.cache
def sites() -> tuple[Site, ...]:
    """Every site of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith("testing/") or file == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in KINDS and node.args:
                keywords = frozenset(str(keyword.arg) for keyword in node.keywords)
                kind = ast.unparse(node.func)
                begins = _begins(node.args[0])
                found.append(Site(file, node.lineno, node.end_lineno or node.lineno, kind, begins, keywords))
    return tuple(found)


# --------------------------------------------------------------------------------------------------------- what it says


@pytest.mark.slow
def test_every_error_says_where_and_what_was_expected_and_what_to_do() -> None:
    for site in sites():
        missing = {"where", "expected", "remedy"} - site.keywords
        if site.kind == "UsageError":  # what was expected of an argument is what to pass
            missing -= {"remedy"}
        assert not missing, f"{site} (line {site.first}) lacks {', '.join(sorted(missing))}"


PLAIN = {
    "__init__.py": "AttributeError of a module, as Python wants it",
    "engine/elementwise.py": "protocol",
    "data/chunk_cache.py": "protocol",
    "data/targets.py": "ValueError, told as a damaged model",
    "data/encoders.py": "ValueError, told as a damaged model",
    "data/transforms.py": "ValueError, told as a damaged model",
    "engine/abstract_array.py": "TypeError, as NumPy's functions raise where an array has no rule for them",
    "events.py": "protocol",
    "models/kernel_machine.py": "KeyError, told as a damaged model",
    "formats/__init__.py": "AttributeError of a module, as Python wants it",
    "sources/arrow_conversion.py": "UnfitError and others, told as a DataError by the source or by as_table",
    "sources/schema.py": "ValueError, told as a damaged model",
    "sklearn/estimators.py": "scikit-learn's conventions",
    "execute/base.py": "protocol",
    "execute/dask_executor.py": "LostError, caught where the step is repeated",
    "execute/dask_actors.py": "LostError, caught where the step is repeated",
    "execute/threads_executor.py": "an exception of another thread, raised here",
    "kernels/base.py": "protocol",
    "registry/promotion_gate.py": "a comparison without a result, caught by the verdict",
    "registry/model_registry.py": "caught below, and told as a damaged file",
    "report/run_directory.py": "caught by whoever reads a run that may not be there",
    "sources/format_rules.py": "IndexError of a position, as Python has it",
    "sweep.py": "protocol",
    "partition/partition_shape.py": "rows of shapes alone, which a projection never reads",
    "models/partitioned_machine.py": "KeyError, told as a damaged artifact",
    "partition/leaf_rows.py": "OSError of a file that is too short, raised again as a StorageError",
    "sklearn/partial_fit.py": "AttributeError, by which scikit-learn knows that a method is missing",
    "sklearn/calibration_mixins.py": "AttributeError, by which scikit-learn knows that a method is missing",
    "calibration/serialization.py": "KeyError, told as a damaged artifact",
    "storage/artifact.py": "KeyError, told as a damaged artifact",
    "storage/artifact_arrays.py": "ValueError, told as a damaged artifact; TypeError of a state that is no numbers",
    "formats/named_arrays.py": "caught by the file that is read",
    "sources/object_writes.py": "what a file system raises, caught by the registry",
    "formats/numpy_files.py": "caught and told with the file's name",
    "formats/parquet_files.py": "caught and told with the file's name",
    "formats/parquet_footer.py": "caught and told with the file's name",
    "storage/serialize.py": "a state of the wrong type: a fault of a solver's author, or a damaged file, told as such",
    "formats/blosc.py": "told with the name of the chunk by the array that reads it",
    "sources/remote_store.py": "what fsspec expects of a file system",
    "ingestion/external_shuffle.py": "OSError, told by the ingest",
    "storage/atomic_writes.py": "OSError of the system, put in words by staged and Workspace",
    "formats/zarr_checked_stores.py": "what zarr expects of a store",
    "cpu/lapack.py": "LinAlgError, as SciPy raises it, caught by the factors that a matrix may not have",
    "commands/parser.py": "argparse's own, and signals",
    "memory.py": "an AssertionError of what cannot be",
}
"""Files that raise other exceptions by name, and why they may."""


@pytest.mark.slow
def test_nothing_else_is_raised_where_users_see_it() -> None:
    other = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith("testing/") or file in PLAIN:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                name = ast.unparse(node.exc.func).rpartition(".")[2]
                if name.endswith(("Error", "Exception")) and name not in KINDS:
                    other.add(f"{file}: {name}")
    assert not other


# ------------------------------------------------------------------------------------------------- what can be provoked

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype(np.float32)
Y = np.arange(60) % 3
NAN = X.copy()
NAN[17, 2] = np.nan


def zarr(folder: Path, rows: np.ndarray = X, y: np.ndarray | None = Y, **more: Any) -> Path:
    sk.write_zarr(folder / "rows.zarr", rows, y, target="label", overwrite=True, **more)
    return folder / "rows.zarr"


def parquet(folder: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def job(**changes: Any) -> sk.Pipeline:
    given: dict[str, Any] = {"train": sk.from_arrays(X, Y), "kernel": sk.Laplace(2.0), "centers": sk.Uniform(10)}
    return sk.Pipeline(**(given | changes))


def plan(**changes: Any) -> Any:
    return sk.plan(job(**changes), memory="4GiB", threads=1, prices=None)


def run(folder: Path, **changes: Any) -> Any:
    return sk.run(job(**changes), folder / "run", threads=1)


@functools.cache
def model(task: str = "classification") -> sk.KernelMachine:
    made = sk.KernelClassifier(centers=10) if task == "classification" else sk.KernelRegressor(centers=10)
    return made.fit(X, Y).model_


def file(folder: Path, text: str, name: str = "job.py") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def command(*words: object) -> None:
    """A command of the command line; its error, if it ends in one."""
    seen: list[BaseException] = []
    old = sys.modules["streamkern.commands.parser"].complain
    sys.modules["streamkern.commands.parser"].complain = lambda text: seen.append(sk.UsageError(text, where="stderr"))
    try:
        status = main([str(word) for word in words])
    finally:
        sys.modules["streamkern.commands.parser"].complain = old
    assert status != 0
    raise Told(str(seen[0].args[0]))


class Told(Exception):
    """What the command line has printed."""


def np_file(folder: Path, array: np.ndarray) -> Path:
    np.save(folder / "a.npy", array, allow_pickle=True)
    return folder / "a.npy"


def group(folder: Path, **arrays: np.ndarray) -> Path:
    made = zarr_python.open_group(folder / "group.zarr", mode="w")
    for name, values in arrays.items():
        made.create_array(name, data=values)
    return folder / "group.zarr"


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "a.npz", **arrays)  # type: ignore[arg-type]
    return folder / "a.npz"


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "empty.h5", "w"):
        return folder / "empty.h5"


def run_locked(folder: Path) -> None:
    """A run in a directory that another holds."""

    def again(kind: str, fields: dict[str, Any]) -> None:
        if kind == "stage":
            run(folder)

    sk.run(job(seed=1), folder / "run", threads=1, listeners=(again,))


def gather_rows(*ids: int) -> Any:
    with ThreadsExecutor(1) as executor:
        return gather(executor, Assembly(sk.from_arrays(X)), np.array(ids))


def half(folder: Path, **marks: Any) -> Path:
    made = zarr_python.open_group(zarr(folder), mode="r+")
    made.attrs["streamkern"] = dict(made.attrs["streamkern"]) | (marks or {"complete": False})
    return folder / "rows.zarr"


NAMES: dict[str, Any] = {
    each.__name__: each
    for each in (
        ArraySource, DaskExecutor, Gate, Quarantined, SimpleNamespace, Sum, command, effective_dimension,
        feature_map_from_json, file, gather_rows, group, half, hdf5, job, kernel_from_json, model, np_file,
        npz, parquet, plan, randomized_eigensystem, rayleigh_quotient, run, run_locked,
        speedup_ratio, top_eigensystem, unflatten, zarr,
    )
} | {"NAN": NAN, "X": X, "Y": Y, "np": np, "pa": pa, "pd": pd, "sk": sk}  # fmt: skip
LOOPS, NUMPY = default_engine().loops, Loops()

VALUES: list[tuple[str, str]] = [
    # expression, and a word of the message: the value that was got
    ("sk.run(job(), f / 'run', threads=0)", "threads is 0|0 threads"),
    ("sk.run(job(), f / 'run', resources=sk.Resources(scheduler='slurm'))", "slurm"),
    ("sk.Uniform(0)", "p is 0"),
    ("sk.KMeans(0)", "p is 0"),
    ("sk.RPCholesky(0, sk.Laplace(1))", "p is 0"),
    ("sk.RPCholesky(10, sk.Laplace(1), subsample=5)", "from 5 rows"),
    ("run(f, centers=sk.Given(np.ones((3, 9))))", "(3, 9)"),
    ("run(f, train=sk.from_arrays(np.repeat(X[:5], 12, axis=0), Y), centers=sk.KMeans(10))", "5 distinct"),
    ("plan(centers=sk.Uniform(600))", "600 rows"),
    ("sk.plan(job(), memory='4GiB', resources=sk.Resources(worker_memory='100MiB'))", "100.0 MiB"),
    ("sk.Laplace(1.0)(X, X, threads=0)", "threads is 0"),
    ("sk.Resources(worker_threads=0)", "worker_threads is 0"),
    ("sk.Resources(device='tpu')", "tpu"),
    ("sk.Resources(memory='much')", "much"),
    ("sk.run(job(), memory='1GiB', resources=sk.Resources('2GiB'))", "1GiB"),
    ("sk.run(job(), resources='threads')", "threads"),
    ("sk.run(job(), scheduler='threads')", "scheduler="),
    ("sk.open_dataset(zarr(f), target='label', on_corrupt='ignore')", "ignore"),
    ("sk.augment.HorizontalFlip((2, 2), probability=2)", "2"),
    ("sk.augment.FeatureDropout(2)", "2"),
    ("sk.augment.GaussianNoise(-1)", "-1"),
    ("sk.augment.MixUp(0)", "alpha is 0"),
    ("sk.augment.MixUp(1, bank=0)", "bank is 0"),
    ("sk.augment.Custom(3)", "3"),
    ("sk.augment.Custom(len, uniforms=-1)", "-1"),
    ("run(f, train=data.augment(sk.augment.Custom(lambda rows, *more: rows[:1])))", "(1, 4)"),
    ("run(f, train=data.augment(sk.augment.Custom(lambda rows, *more: rows * np.nan)))", "not finite"),
    ("sk.augment.RandomCrop((2, 2), padding=-1)", "-1"),
    ("sk.augment.RandomCrop((2,))", "(2,)"),
    ("sk.augment.RandomErasing((2, 2), area=(0.5, 0.1))", "(0.5, 0.1)"),
    ("run(f, train=sk.from_arrays(X, Y).augment(sk.augment.HorizontalFlip((3, 3))))", "4 features"),
    ("augmented.scale(2)", "augmented"),
    ("data.augment(copies=2).without([])", "augmented"),
    ("run(f, centers=None, features=sk.Nystrom(sk.Laplace(1)))", "centers"),
    ("data.scale([1, 2])", "(2,)"),
    ("data.augment(3)", "3 is not an augmentation"),
    ("data.augment(copies=2, rows=5)", "copies and rows"),
    ("data.augment(copies=0)", "copies is 0"),
    ("data.split(test=2)", "2"),
    ("data.sample(100)", "100 rows"),
    ("data.sample(10, stratify=True, weights=np.ones(60))", "stratify and weights"),
    ("sk.from_arrays(X, None).sample(10, stratify=True)", "no classes"),
    ("data.sample(10, weights=np.r_[1.0, np.zeros(59)])", "1 rows"),
    ("data.sample(10, weights=-np.ones(60))", "-1"),
    ("data.sample(10, weights=9)", "column 9"),
    ("data.sample(10, weights=np.ones(5))", "(5,)"),
    ("sk.from_arrays(X, np.where(Y == 1, np.nan, Y)).sample(10, stratify=True)", "NaN"),
    ("sk.RandomProjection(0)", "components is 0"),
    ("sk.RandomProjection(5, density=2)", "density is 2"),
    ("sk.Impute('zero')", "zero"),
    ("sk.Impute('constant', value=np.inf)", "inf"),
    ("sk.OneHot(())", "()"),
    ("sk.OneHot((0,), unknown='skip')", "skip"),
    ("sk.Pipeline(train=data, preprocess=(3,))", "(3,)"),
    ("run(f, preprocess=(sk.OneHot((9,)),))", "9"),
    ("run(f, preprocess=(sk.OneHot((1, 1)),))", "twice|(1, 1)"),
    ("run(f, train=sk.from_arrays(np.where(np.arange(4) == 2, np.nan, X), Y), preprocess=(sk.Impute('mean'),))", "2"),
    ("run(f, train=sk.from_arrays(NAN, Y))", "NaN"),
    ("run(f, train=sk.from_arrays(X, np.where(Y == 1, np.nan, Y)))", "row 1"),
    ("run(f, train=sk.from_arrays(X, np.where(Y == 1, np.nan, Y)), task='regression')", "row 1"),
    ("run(f, train=sk.from_arrays(np.ones((60, 4)), Y))", "constant"),
    ("run(f, train=sk.from_arrays(X, np.ones(60)))", "one class"),
    ("run(f, train=sk.from_arrays(np.eye(2)[np.arange(10_001) % 2], np.arange(10_001)))", "different values"),
    ("run(f, train=sk.from_arrays(X, Y + 0.5))", ".5"),
    ("run(f, train=sk.from_arrays(X, Y.astype(str)), task='regression')", "type"),
    ("run(f, train=sk.from_arrays(X, np.stack([Y, Y + 1], axis=1)))", "A label is 2 in a target"),
    ("run(f, train=sk.from_arrays(X, None))", "no target"),
    ("run(f, train=data.split(test=0.5)[0].sample(1), centers=sk.Uniform(1))", ""),
    ("plan(train=sk.from_arrays(X[:0], Y[:0]))", "0 rows"),
    ("model().score(sk.from_arrays(X, Y + 5))", "label 5"),
    ("model().score(sk.from_arrays(X, Y.astype(str)))", "type"),
    ("model().score(sk.from_arrays(X, np.stack([Y, Y], axis=1)))", "2 values"),
    ("model('regression').score(sk.from_arrays(X, np.stack([Y, Y], axis=1)))", "2 values"),
    ("model('regression').score(sk.from_arrays(X, np.full(60, np.nan)))", "NaN"),
    ("model('regression').score(sk.from_arrays(X, np.array(list('abc'))[Y]))", "not a number"),
    ("model().score(sk.from_arrays(X, None))", "no target"),
    ("model().predict(X[:, :2])", "2 features"),
    ("model().predict(NAN)", "row 17"),
    ("model().predict(data.scale(2.0))", "scaled"),
    ("sk.Predictor(model(), max_rows=0)", "max_rows is 0"),
    ("sk.Predictor(model(), max_rows=5)(X)", "60 rows"),
    ("sk.Predictor(model())([['a'] * 4])", "not a number"),
    ("sk.Predictor(model())([[1.0], [1.0, 2.0]])", "lengths"),
    ("sk.Predictor(model())(X[:, :2].tolist())", "2"),
    ("sk.KernelClassifier(kernel='rbfs').fit(X, Y)", "rbf"),
    ("sk.KernelClassifier(dtype='int8').fit(X, Y)", "int8"),
    ("sk.KernelClassifier().fit(data, Y)", "y"),
    ("sk.Laplace(0)", "0"),
    ("sk.Laplace(1e-320)", "e-320"),
    ("sk.RandomProjection(1 << 24)", "16,777,216"),
    ("sk.Polynomial(degree=1.5)", "1.5"),
    ("sk.Linear(centred='yes')", "yes"),
    ("sk.NTK(depth=0)", "0"),
    ("sk.Laplace(1)(X[0], X)", "1 dimensions"),
    ("sk.Laplace(1)(X, X[:, :2])", "2"),
    ("sk.Laplace(1).matvec(X, X, np.ones((3, 1)))", "3 rows"),
    ("sk.Matern(1, nu=3)", "3"),
    ("sk.ExponentialPower(1, exponent=3)", "3"),
    ("sk.RandomFourier(sk.Cauchy(1), 8)", "Cauchy"),
    ("sk.RadialProfile(3)", "3"),
    ("sk.RadialProfile(lambda t: t).to_json()", "lambda"),
    ("sk.Pipeline(train=data, task='ranking')", "ranking"),
    ("sk.Pipeline(train=3)", "3"),
    ("sk.KernelClassifier(scaling='unit').fit(X, Y)", "unit"),
    ("sk.Pipeline(train=data, lanes=0)", "0"),
    ("sk.run(3)", "3"),
    ("sk.run(job(), f / 'run', checkpoint_seconds=-1)", "-1"),
    ("sk.run(job(), f / 'run', memory='5 apples')", "5 apples"),
    ("sk.run(job(), f / 'run', memory='-1')", "-1"),
    ("sk.run(job(), f / 'run', memory='10MB')", "9.5 MiB"),
    ("sk.resume(f)", "no run"),
    ("run(f) and sk.resume(f / 'run')", "pipeline file"),
    ("sk.load_pipeline(f / 'no.py')", "no.py"),
    ("sk.load_pipeline(file(f, '', 'job.txt'))", "job.txt"),
    ("sk.load_pipeline(file(f, 'def'))", "job.py"),
    ("sk.load_pipeline(file(f, 'x = 1'))", "no function"),
    ("sk.load_pipeline(file(f, 'def pipeline(a: int): ...'))", "'a'"),
    ("sk.load_pipeline(file(f, 'def pipeline(a: int = 1): ...'), {'b': '1'})", "'b'"),
    ("sk.load_pipeline(file(f, 'def pipeline(a: int = 1): ...'), {'a': 'x'})", "'x'"),
    ("sk.load_pipeline(file(f, 'def pipeline(a: int = 1): ...'))", "NoneType"),
    ("sk.load_pipeline(file(f, 'def pipeline(a: \"Missing\" = 1): ...'))", "Missing"),
    ("sk.retrain(job(), f / 'models', keep=0)", "keep is 0"),
    ("sk.retrain(job(), f / 'models')", "no test rows"),
    ("sk.Registry(f)", "no model registry"),
    ("sk.Registry(f / 'models', create=True).load()", "champion"),
    ("sk.Registry(f / 'models', create=True).promote('x')", "'x'"),
    ("sk.Registry(f / 'models', create=True).promote(3)", "version 3"),
    ("sk.Registry(f / 'models', create=True).rollback()", "earlier champion"),
    ("sk.Registry(f / 'models', create=True).prune(0)", "keep is 0"),
    ("Gate('accuracy >')", "accuracy >"),
    ("Gate('1 > 0 and ' * 5000)", "characters"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f), 's3://bucket/out.parquet')", "out.parquet"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f), f / 'out.xlsx')", "out.xlsx"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f), file(f, '', 'out.parquet'))", "out.parquet"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f, X[:, :2]), f / 'out.parquet')", "2 features"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f, X.astype('uint8')), f / 'out.parquet')", "uint8"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f), f / 'out.parquet', memory='10MB')", "9.5 MiB"),
    ("sk.predict(model('regression').save(f / 'm.zarr'), zarr(f), f / 'o.parquet', scores=True)", "no scores"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f), f / 'out.parquet', id='prediction')", "prediction"),
    ("sk.load_model(f / 'no.zarr')", "no.zarr"),
    ("sk.load_model(zarr(f))", "rows.zarr"),
    ("sk.open_dataset(model().save(f / 'saved.zarr'))", "saved model"),
    ("sk.load_model(file(f, 'x', 'm.zarr'))", "m.zarr"),
    ("model().save(file(f, 'x', 'm.zarr'))", "m.zarr"),
    ("sk.EigenPro(projection='none')", "none"),
    ("sk.EigenPro(epochs=0)", "0"),
    ("sk.EigenPro(projection_products=-1)", "-1"),
    ("sk.EigenPro(step=0)", "0"),
    ("sk.EigenPro(momentum=1)", "1"),
    ("sk.EigenPro(momentum=0.5, projection='delayed')", "momentum"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.EigenPro())", "features"),
    ("run(f, centers=sk.Uniform(1), solver=sk.EigenPro(projection='inexact'))", "1 centers"),
    ("sk.EigenPro1(step=0)", "0"),
    ("sk.EigenPro1(tau=0)", "0"),
    ("sk.EigenPro1(epochs=0)", "0"),
    ("sk.EigenPro2(step=0)", "0"),
    ("sk.EigenPro2(epochs=0)", "0"),
    ("run(f, train=data.augment(copies=2), centers=sk.AllRows(), solver=sk.EigenPro2())", "60 stored rows"),
    ("run(f, solver=sk.EigenPro2())", "10 centers"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.EigenPro2())", "features"),
    ("run(f, centers=sk.AllRows(), solver=sk.Falkon())", "AllRows"),
    ("sk.Falkon(epochs=1)", "1"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.Falkon())", "features"),
    ("sk.Logistic(ridge=0)", "0"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.Logistic())", "features"),
    ("run(f, task='regression', solver=sk.Logistic())", "1 column"),
    ("sk.Direct(ridge=-1)", "-1"),
    ("sk.SGD(schedule='linear')", "linear"),
    ("sk.SGD(schedule='pegasos')", "pegasos"),
    ("sk.SGD(theta=1)", "1"),
    ("sk.SGD(step=-1)", "-1"),
    ("sk.SGD(step=1, stages=((1, 0.1),))", "stages"),
    ("sk.SGD(epochs=0)", "0"),
    ("sk.GradientDescent(epochs=0)", "0"),
    ("sk.GradientDescent(step=0)", "0"),
    ("sk.corollary_1(9, 100)", "9"),
    ("sk.SVRG(step=0)", "0"),
    ("sk.SVRG(epochs=0)", "0"),
    ("sk.SVRG(sampling='all')", "all"),
    ("run(f, train=data.augment(rows=70), solver=sk.SVRG(sampling='importance'))", "60"),
    ("run(f, kernel=sk.Gaussian(1e9))", "differ by 0 only"),
    ("run(f, solver=sk.EigenPro(patience=2))", "patience"),
    ("run(f, solver=sk.SGD(step=30.0, batch=4, epochs=20))", "loss"),
    ("sk.from_arrays(X[:, 0], Y)", "(60,)"),
    ("sk.from_arrays(X, Y[:5])", "(5,)"),
    ("sk.from_arrays(X, Y, columns=['a'])", "1 distinct"),
    ("ArraySource(X, Y, chunk_rows=0)", "0"),
    ("sk.from_arrays(np.zeros((60, 2), dtype=complex), Y)", "complex"),
    ("sk.from_arrays(X, np.ones((60, 2, 2)))", "3 axes"),
    ("sk.from_arrays(X, np.zeros(60, dtype=complex))", "complex"),
    ("sk.open_dataset(f / 'no')", "no"),
    ("sk.open_dataset(f / 'no.zarr')", "no.zarr"),
    ("sk.open_dataset(f / 'no.parquet')", "no.parquet"),
    ("sk.open_dataset(f)", ""),
    ("sk.open_dataset(f, format='csv')", "csv"),
    ("sk.open_dataset(zarr(f), target='lable')", "label"),
    ("sk.open_dataset(zarr(f), target='label', columns=['a'])", "no names"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=[2.0]), columns=['a', 'a'])", "'a'"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=[b'x']))", "binary"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=['x']), schema={'b': 'number'}).source.read(0)", "'x'"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=['x']), schema={'b': 'text'})", "'text'"),
    ("sk.from_arrays(X, schema=3, columns=None) and sk.from_arrays({'a': [1]}, schema=3)", "3"),
    ("sk.Schema(3)", "3"),
    ("sk.from_arrays({'a': [1, 2], 'b': [1]})", "length"),
    ("sk.from_arrays(pd.DataFrame([[1, 2]], columns=['a', 'a']))", "'a'"),
    ("sk.KernelRegressor().fit(X, list(pd.date_range('2026-01-01', periods=len(X), tz='UTC')))", "2026-01-01"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=[[1.0]]))", "'b'"),
    ("sk.open_dataset(parquet(f, a=[1.0]), target='a')", "columns"),
    ("sk.open_dataset(parquet(f, a=[1.0, 2.0], b=[0, None]), target='b').source.read(0)", "row 1"),
    ("sk.open_dataset(file(f, 'x' * 99, 't.parquet'))", "t.parquet"),
    ("sk.write_parquet(f / 'x.parquet', X, Y, target='X')", "'X'"),
    ("sk.write_parquet(f / 'x.parquet', iter([]))", "no blocks"),
    ("sk.write_zarr(f / 'x.zarr', X, Y, target='X')", "'X'"),
    ("sk.write_zarr(f / 'x.zarr', iter([]), n_rows=0)", "no blocks"),
    ("sk.write_zarr(f / 'x.zarr', iter([]))", "n_rows"),
    ("sk.write_zarr(zarr(f), X)", "rows.zarr"),
    ("sk.write_zarr(f / 'x.zarr', iter([(X, Y)]), n_rows=5, target='y')", "n_rows=5"),
    ("sk.ingest([], f / 'out.zarr')", "no sources"),
    ("sk.ingest(f / '*.csv', f / 'out.zarr')", "*.csv"),
    ("sk.ingest(f / 'no.csv', f / 'out.zarr')", "no.csv"),
    ("sk.ingest((X, Y), 's3://bucket/out.zarr')", "out.zarr"),
    ("sk.ingest((X, Y), f / 'out', format='csv')", "csv"),
    ("sk.ingest((X, Y), f / 'out.zarr', dtype='text')", "text"),
    ("sk.ingest((X * 1e3, Y), f / 'out.zarr', dtype='float16', memory='10MB')", "9.5 MiB"),
    ("sk.ingest((X * 1e9, Y), f / 'out.zarr', dtype='float16')", "float16"),
    ("sk.ingest((X, Y), f / 'out.zarr', missing='zero')", "zero"),
    ("sk.ingest((X, Y), f / 'out.zarr', compression='best')", "best"),
    ("sk.ingest((X, Y), zarr(f) and file(f, '', 'out.zarr'))", "out.zarr"),
    ("sk.ingest(X, f / 'out.zarr', target='y')", "'y'"),
    ("sk.ingest(file(f, '', 'a.csv'), f / 'out.zarr')", "a.csv"),
    ("sk.ingest(file(f, 'a,b', 'a.csv'), f / 'out.zarr')", "a.csv"),
    ("sk.Retry(timeout=0)", "0"),
    ("sk.Registry(f / 'models', create=True).load()", "champion"),
    ("next(model().stream_predictions(data.split(test=0.5)[0]))", "selection of rows"),
    ("run(f, train=sk.from_arrays(X, np.array(['a', 1, 2] * 20, dtype=object)))", "int, str"),
    ("sk.Laplace('mean')", "mean"),
    ("sk.Laplace('median')(X, X)", "median"),
    ("DaskExecutor(SimpleNamespace(asynchronous=True)).__enter__()", "asynchronous"),
    ("data.without([Quarantined(5, 9, '', ''), Quarantined(7, 12, '', '')])", "overlap"),
    ("data.without([Quarantined(0, 60, 'chunk 0', 'it is damaged')])", "it is damaged"),
    ("sk.load_pipeline(f / 'no.py', {'url': 's3://key:secret@host'})", "no.py"),
    ("run(f, name='a') and run_locked(f)", "process"),
    ("sk.run(job(), file(f, '', 'a') / 'run')", "/run"),
    ("sk.ingest(np_file(f, X), f / 'out.zarr', target='y')", "y"),
    ("sk.ingest(npz(f, a=X, b=X[:5]), f / 'out.zarr')", "a, b"),
    ("sk.ingest(npz(f, a=X[:, 0], b=X[:5, 0]), f / 'out.zarr')", "60 and 5 rows"),
    ("sk.ingest(npz(f, X=X, a=X, b=Y), f / 'out.zarr', target=['a', 'b'])", "target 'a' is a column of float32[60, 4]"),
    ("sk.ingest((X, Y), file(f, '', 'a') / 'out.zarr')", "directory"),
    ("sk.write_zarr(file(f, '', 'a') / 'x.zarr', X)", "a/x.zarr"),
    ("sk.ingest(hdf5(f), f / 'out.zarr')", "empty.h5"),
    ("sk.open_dataset(npz(f, X=X))", "a.npz"),
    ("sk.open_dataset('gopher://host/a.parquet')", "gopher"),
    ("sk.ingest(pa.table({'a': [1.0]}), f / 'out.zarr', target='a')", "no columns"),
    ("sk.ingest(pa.table({'a': [1.0], 'b': [[1.0]]}), f / 'out.zarr')", "'b'"),
    ("sk.ingest(pa.table({'a': [1.0], 'b': [[1]]}), f / 'out.zarr', target='b')", "'b'"),
    ("sk.ingest(pa.table({'a': [1.0, None], 'b': [0, 1]}), f / 'out.zarr', target='b', missing='error')", "row 1"),
    (
        "sk.Predictor(sk.KernelRegressor().fit(pd.DataFrame(X, columns=list('abcd')), Y).model_)(X, list('abcx'))",
        "columns",
    ),
    ("sk.Predictor(model())(X + np.nan)", "NaN"),
    ("gather_rows(99)", "99"),
    ("unflatten({'record': 'Nothing', 'fields': {}}, {})", "Nothing"),
    ("LOOPS.radial(np.zeros((1, 1)), np.ones(1), np.ones(1), 'sinc', {'bandwidth': 1.0})", "sinc"),
    ("LOOPS.radial(np.zeros((1, 1)), np.ones(1), np.ones(1), 'laplace', {'bandwidth': 0.0})", "is 0"),
    (
        "LOOPS.radial(np.zeros((2, 4)), np.ones(2), np.ones(3), 'laplace', {'bandwidth': 1.0})",
        "(2, 4)",
    ),
    (
        "LOOPS.radial(np.zeros((1, 1), int), np.ones(1), np.ones(1), 'laplace', {'bandwidth': 1.0})",
        "int64",
    ),
    ("LOOPS.radial(X[:1, :1], [0.0], [0.0], 'gaussian', {'bandwidth': 1.0, 'norm': 1})", "norm 1"),
    ("LOOPS.manhattan(X, X[:, :2], X.copy())", "do not fit"),
    ("sk.Laplace(1.0, norm=1) + sk.Gaussian(1.0)", "different norms"),
    ("sk.AGOP(kind='triangular')", "triangular"),
    ("sk.KernelRegressor(centers=sk.Given(X[:3]), metric=sk.AGOP()).fit(X, Y)", "given centers"),
    ("sk.KernelRegressor(centers=2, metric=sk.AGOP()).fit(X[:3], Y[:3])", "A metric is learned"),
    ("LOOPS.angular(np.zeros((1, 1)), np.ones(1), np.ones(1), 'ntk', 0)", "depth 0"),
    ("LOOPS.cosines(np.zeros((1, 2)), np.ones(3), 1.0)", "(3,)"),
    ("LOOPS.row_norms(X.astype(int))", "int"),
    ("NUMPY.row_norms(X.astype(int))", "int"),
    ("LOOPS.add_noise(X.copy(), np.arange(3), copies=0, seed=1, sigma=1.0)", "3 row ids"),
    ("NUMPY.add_noise(X.copy(), np.arange(3), copies=0, seed=1, sigma=1.0)", "3 row ids"),
    ("top_eigensystem(np.eye(5), 5)", "5 eigenpairs"),
    ("top_eigensystem(np.full((5, 5), np.inf), 2)", "finite"),
    ("top_eigensystem(np.zeros((5, 5)), 2)", "positive"),
    ("randomized_eigensystem(lambda V: V, 10, 10)", "10 eigenpairs"),
    ("randomized_eigensystem(lambda V: 0 * V, 10, 3)", "positive"),
    ("randomized_eigensystem(lambda V: np.nan * V, 10, 3)", "finite"),
    ("speedup_ratio(np.ones(3), 9)", "k is 9"),
    ("effective_dimension(np.ones(3), 0.0)", "0"),
    ("rayleigh_quotient(np.eye(3), np.zeros(3))", "zero"),
    ("sk.Laplace(1) * -1.0", "-1"),
    ("Sum(())", "()"),
    ("kernel_from_json({'name': 'Sinc'})", "Sinc"),
    ("kernel_from_json({'name': 'Laplace', 'size': 3})", "size"),
    ("feature_map_from_json({'name': 'Fourier'})", "Fourier"),
    ("feature_map_from_json({'name': 'Identity', 'M': 3})", "M"),
    ("sk.ingest(np_file(f, np.array([{}], dtype=object)), f / 'out.zarr')", "objects"),
    ("sk.ingest(file(f, 'x', 'a.npy'), f / 'out.zarr')", "a.npy"),
    ("sk.open_dataset(zarr(f, y=np.ones((60, 2, 2))), target='label')", "3 axes"),
    ("sk.write_zarr(f / 'x.zarr', iter([(X, Y), (X[:, :2], Y)]), n_rows=120, target='y')", "(60, 2)"),
    ("sk.open_dataset(half(f))", "half-written"),
    ("sk.open_dataset(half(f, format=9, complete=True))", "9"),
    ("sk.open_dataset(file(f, 'x', 'a.zarr'))", "a.zarr"),
    ("sk.open_dataset(group(f, a=np.ones((3, 2)), b=np.ones((3, 4))))", "a, b"),
    ("sk.open_dataset(group(f, a=np.ones(3), b=np.ones(4)))", "'b'"),
    ("sk.open_dataset(group(f, a=np.ones((3, 2)), b=np.ones(4)), target='b')", "3 rows"),
    ("sk.open_dataset(group(f, a=np.ones((3, 0))))", "no features"),
    ("sk.open_dataset(group(f, a=np.ones(3)), target='a')", "no columns"),
    ("sk.open_dataset(group(f, a=np.ones((3, 2))) / 'a', target='y')", "'y'"),
    ("sk.KMeans(3, batch=0)", "0"),
    ("command('plan')", "pipeline"),
    ("command('retrain', file(f, 'def pipeline(): ...'))", "registry"),
    ("command('models', sk.Registry(f / 'm', create=True) and f / 'm', 'promote')", "version"),
    ("command('plan', 'a.py', '--set', 'rows')", "'rows'"),
    ("command('status', f)", "no run"),
    ("command('run', f / 'no.py')", "no.py"),
]


@pytest.fixture(scope="module")
def made() -> Iterator[set[tuple[str, int]]]:
    """Places in the package, by file and line, at which errors have been made since."""
    places: set[tuple[str, int]] = set()
    init = errors.StreamkernError.__init__

    def noting(self: errors.StreamkernError, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        frame = sys._getframe(1)
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            places.add((path.relative_to(PACKAGE).as_posix(), frame.f_lineno))

    errors.StreamkernError.__init__ = noting  # type: ignore[method-assign]
    yield places
    errors.StreamkernError.__init__ = init  # type: ignore[method-assign]


DONE: set[str] = set()
"""Expressions that were provoked in this process: with xdist others have some of them."""


def provoked(expression: str, folder: Path) -> Exception:
    DONE.add(expression)
    names = globals() | {
        "f": folder,
        "data": sk.from_arrays(X, Y),
        "augmented": sk.from_arrays(X, Y).augment(sk.augment.GaussianNoise(1)),
    }
    with pytest.raises((sk.StreamkernError, Told)) as caught:
        eval(expression, names)
    return caught.value


@pytest.mark.parametrize(("expression", "word"), VALUES, ids=[expression[:60] for expression, _ in VALUES])
def test_it_names_what_it_got(expression: str, word: str, tmp_path: Path, made: set[tuple[str, int]]) -> None:
    error = provoked(expression, tmp_path)
    told = str(error)
    assert any(each in told for each in word.split("|")), told
    assert "\n  where: " in told
    assert "\n  expected: " in told or "\n  do: " in told
    assert "Traceback" not in told


def _table(text: str) -> dict[str, str]:
    """Lines in pairs: a site, and what is said of it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    return dict(zip(lines[::2], lines[1::2], strict=True))


ELSEWHERE = _table("""
runs/pipeline_definition.py: The setting
    pipeline/test_pipeline.py::test_settings_of_a_file_are_typed_values_texts_or_keywords
sklearn/input_checks.py: ... has no parameter
    test_estimators.py::test_parameters_of_a_solver_are_searched_by_their_names
sources/column_roles.py: f'column {missing!r} is not there' + (f', nor are
    serving/test_predictor.py::test_the_application_answers_with_probabilities_and_names_unseen_categories
ingestion/array_files.py: the values of this dataset are stored in other fil
    storage/test_strangers_files.py::test_an_hdf5_dataset_whose_values_are_in_other_files_is_refused
formats/checked_zarr_array.py: the array has chunks of shape
    storage/test_strangers_files.py::test_chunks_without_rows_are_refused
kernels/named_kernels.py: The kernel is combined of
    storage/test_crafted_models.py::test_a_kernel_of_many_parts_is_refused
storage/artifact.py: This is a symbolic link.
    storage/test_crafted_models.py::test_what_lies_inside_a_model_is_no_link
engine/elementwise.py: Cannot gather
    cpu/test_rows.py::test_an_output_that_does_not_fit_is_refused
engine/elementwise.py: Row indices run from
    cpu/test_rows.py::test_an_index_out_of_range_is_refused
runs/pipeline_definition.py: class_weight is given, and the task is regression.
    test_class_weights.py::test_unknown_labels_and_other_values_are_refused
centers.py: A row has a value that is not finite, or too large
    test_centers_kmeans.py::test_a_row_that_is_not_finite_is_refused_wherever_it_lies
centers.py: A row has a value that is not finite.
    test_centers_rpcholesky.py::test_a_row_that_is_not_finite_is_refused
centers.py: Z is
    test_parameters.py::test_a_parameter_of_the_wrong_type_is_refused_by_its_name
data/row_compatibility.py: The rows are dicts, and the columns of training ha
    serving/test_predictor.py::test_every_door_of_a_model_of_numbers_takes_numbers_in_their_order
data/row_compatibility.py: A feature is too large:
    test_rows_to_predict.py::test_what_float32_cannot_hold_is_said_so
data/row_compatibility.py: A feature is
    pipeline/test_before_training.py::test_rows_that_evaluation_would_refuse_are_refused_before_training
sklearn/estimators.py: ... is given without a kernel.
    test_estimators.py::test_a_grid_of_bandwidths_is_searched
sklearn/input_checks.py: y is the text
    test_estimators.py::test_no_target_at_all_is_told
sklearn/input_checks.py: A target is
    test_estimators.py::test_a_target_that_is_no_finite_number_is_told_by_its_row
sklearn/input_checks.py: A target is missing:
    test_estimators.py::test_a_target_that_is_missing_is_told_by_its_row
sklearn/input_checks.py: Targets are of two types:
    test_estimators.py::test_targets_of_two_types_are_told_by_their_rows
sklearn/input_checks.py: There is no target: this estimator requires y to b
    test_estimators.py::test_no_target_at_all_is_told
commands/pipelines.py: There is no run here that is done.
    test_cli.py::test_a_plan_beside_a_run_shows_what_each_stage_took
commands/run_reports.py: The page cannot be served:
    report/test_browser.py::test_a_port_that_is_taken_is_told
sklearn/partial_fit.py: partial_fit takes the solver Direct, and this is
    solvers/test_sums.py::test_what_cannot_be_updated_says_why
sklearn/partial_fit.py: The classes are
    solvers/test_sums.py::test_classes_may_come_later_if_they_are_named
solvers/direct.py: keep_sums is
    solvers/test_sums.py::test_what_cannot_be_updated_says_why
solvers/direct.py: f'{forgotten:,} rows are to be forgotten of {seen:
    solvers/test_sums.py::test_what_cannot_be_updated_says_why
solvers/direct.py: The sums are not those of the model, or of a newer
    solvers/test_sums.py::test_a_saved_model_has_its_sums_beside_it
errors.py: The argument
    test_same_arguments.py::test_an_old_name_is_refused_with_the_new_one
kernels/base.py: ... has no parameter
    kernels/test_compose.py::test_parameters_have_names_and_are_set_in_a_new_kernel
runs/pipeline_definition.py: ... has an import that fails:
    test_user_faults.py::test_a_pipeline_file_that_fails_is_one_error_with_its_line
data/augment.py: An augmentation raised
    test_user_faults.py::test_a_function_of_the_users_that_fails_in_training_is_one_error
data/statistics.py: A
    test_user_faults.py::test_a_target_whose_square_is_infinite_is_named
data/statistics.py: A feature is too large for
    test_user_faults.py::test_a_value_whose_square_is_infinite_is_named
engine/reference.py: The kernel matrix of the centers is not positive d
    cpu/test_linear_algebra.py::test_what_is_not_positive_definite_is_refused
kernels/radial.py: The function of
    test_user_faults.py::test_a_function_of_the_users_that_fails_in_training_is_one_error
runs/pipeline_definition.py: ... raised
    test_user_faults.py::test_a_pipeline_file_that_fails_is_one_error_with_its_line
registry/retrain.py: A pipeline with this
    test_user_faults.py::test_retraining_refuses_a_kernel_that_it_could_not_load_before_it_trains
runs/run_pipeline.py: This run cannot be resumed:
    test_user_code.py::test_where_the_code_cannot_be_known_nothing_is_reused_and_resuming_is_refused
runs/run_pipeline.py: The settings of this run had a secret, which was n
    test_redaction.py::test_no_secret_is_in_any_artefact_of_a_run
formats/csv.py: To read
    storage/test_csv_damage.py::test_more_columns_than_the_memory_takes_are_refused_before_they_are_parsed
formats/csv.py: a record has
    storage/test_csv_damage.py::test_a_damaged_table_is_an_error_that_names_the_place
formats/csv.py: column
    storage/test_csv_damage.py::test_a_damaged_table_is_an_error_that_names_the_place
data/dataset.py: The dataset is augmented already.
    data/test_preprocess.py::test_a_transform_belongs_to_its_width_and_comes_before_augmentation
data/dataset.py: The rows have sample weights, and MixUp mixes two
    data/test_weights.py::test_bad_weights_are_told
data/dataset.py: The transform takes
    data/test_preprocess.py::test_a_transform_belongs_to_its_width_and_comes_before_augmentation
preprocessing/steps.py: A column is given twice.
    data/test_preprocess.py::test_columns_that_are_not_there_are_refused
preprocessing/steps.py: Feature
    data/test_preprocess.py::test_too_many_categories_are_refused
data/statistics.py: Every sample weight is 0.
    data/test_weights.py::test_bad_weights_are_told
data/transforms.py: The feature
    serving/test_predict.py::test_a_schema_other_than_that_of_training_is_refused
data/transforms.py: The preprocessing
    data/test_preprocess.py::test_an_unknown_transform_is_refused
cpu/elementwise.py: Outputs of
    cpu/test_fused_predict.py::test_shapes_that_do_not_fit_are_refused
execute/__init__.py: The scheduler
    execute/test_open_executor.py::test_without_distributed_the_extra_is_named
execute/worker_protocol.py: ... lost its workers
    execute/test_faults.py::test_a_step_that_kills_its_workers_is_given_up
execute/dask_executor.py: A worker has no memory left:
    execute/test_clusters.py::test_a_worker_without_memory_is_a_clear_error
execute/dask_client.py: No Dask scheduler answered within
    execute/test_open_executor.py::test_an_address_where_nothing_answers_is_an_error_within_seconds
execute/dask_executor.py: The Dask scheduler is gone, or does not answer.
    execute/test_faults.py::test_a_dead_scheduler_is_a_clear_error
execute/dask_client.py: The address of the scheduler cannot be used:
    execute/test_open_executor.py::test_an_address_that_cannot_be_used_is_a_usage_error
execute/dask_executor.py: The cluster cannot run a task:
    execute/test_open_executor.py::test_what_the_workers_cannot_import_is_a_clear_error
execute/dask_executor.py: The cluster has had no workers for
    execute/test_faults.py::test_all_workers_killed_and_none_started_is_a_clear_error
execute/dask_executor.py: The worker processes did not start.
    execute/test_clusters.py::test_a_script_without_a_guard_is_told_of_it
kernels/feature_maps.py: ... changes when rows are centred.
    kernels/test_features.py::test_the_features_of_a_row_do_not_depend_on_centring
kernels/feature_maps.py: ... of rows of width
    kernels/test_features.py::test_a_map_that_is_none_is_refused
kernels/feature_maps.py: K(Z, Z) of
    kernels/test_features.py::test_a_kernel_that_is_not_positive_definite_is_named
kernels/radial.py: The bandwidth is
    solvers/test_bandwidth.py::test_a_kernel_that_asks_is_a_value_like_others_but_has_none_until_it_is_told
kernels/named_kernels.py: The kernel is the user's function
    kernels/test_radial.py::test_a_profile_is_saved_by_name_and_loading_does_not_import_it
memory.py: The process holds
    test_memory_limit.py::test_what_outgrows_its_budget_is_told_in_words
memory.py: The system refused to allocate memory:
    test_memory_limit.py::test_memory_that_the_system_refuses_is_told_in_words
memory.py: ... is not a positive size.
    pipeline/test_plan.py::test_a_memory_that_is_no_size_is_refused
runs/pipeline_definition.py: The parameter
    pipeline/test_pipeline.py::test_a_literal_is_one_of_its_values_and_a_list_is_refused_in_words
serving/explain.py: Gradients of
    serving/test_explain.py::test_models_without_gradients_are_refused
serving/explain.py: Preprocessing combines columns, so no feature belo
    serving/test_explain.py::test_models_without_gradients_are_refused
formats/csv.py: the bytes
    storage/test_text_tables.py::test_errors_name_the_cause_and_the_option
sources/input_types.py: ... is sparse: a
    storage/test_doors.py::test_sparse_rows_are_one_error_on_every_door
formats/fsspec_file.py: the file is not in the encoding
    storage/test_text_tables.py::test_a_wrong_encoding_is_named_with_its_option
serving/predictor.py: This is a path, or a text:
    storage/test_doors.py::test_a_path_is_a_data_set_where_rows_are_read_and_refused_where_they_are_served
sklearn/input_checks.py: X is a path:
    storage/test_doors.py::test_a_path_is_a_data_set_where_rows_are_read_and_refused_where_they_are_served
formats/polars_lazy_frame.py: computing the LazyFrame failed:
    storage/test_doors.py::test_a_lazy_frame_that_cannot_be_computed_is_one_error
formats/named_arrays.py: This array is structured: its fields are
    storage/test_odd_types.py::test_records_in_a_file_are_one_error_that_names_the_fields
sources/read_options.py: ... is
    storage/test_text_tables.py::test_options_out_of_range_are_refused
sources/read_options.py: read_options is
    storage/test_text_tables.py::test_options_that_nothing_takes_are_refused
formats/open_tables.py: this is a zip archive
    storage/test_odd_types.py::test_a_zipped_store_is_one_error_with_the_command_that_unpacks_it
formats/open_tables.py: read_options are given, and no source is a text ta
    storage/test_text_tables.py::test_options_that_nothing_takes_are_refused
serving/predict_files.py: The id column and a column of the predictions are
    serving/test_ids.py::test_an_id_has_any_name_that_no_written_column_has
serving/predict_files.py: An array of zarr cannot be called
    serving/test_ids.py::test_names_that_zarr_cannot_store_are_refused_by_zarr_alone
sources/column_roles.py: The
    serving/test_ids.py::test_an_id_within_the_numbers_of_ingested_rows_is_explained
serving/predict_files.py: The columns of training cannot be chosen:
    serving/test_predict.py::test_rows_without_the_names_of_training_are_refused
runs/run_pipeline.py: The working directory of this run is gone.
    pipeline/test_resume.py::test_a_working_directory_that_is_gone_is_told
registry/warm_start.py: The classes are not those of the champion.
    registry/test_retrain.py::test_what_does_not_fit_the_champion_begins_at_0_and_says_why
precondition/lanczos.py: The covariance of the features is not finite, or 0
    precondition/test_lanczos.py::test_features_that_are_all_zero_are_refused
precondition/lanczos.py: epsilon is
    precondition/test_lanczos.py::test_values_out_of_range_are_refused
precondition/lanczos.py: k is
    precondition/test_lanczos.py::test_values_out_of_range_are_refused
precondition/nystrom.py: The preconditioned kernel is not positive: mean di
    precondition/test_nystrom.py::test_what_is_not_positive
serving/predictor.py: The columns differ from those of training.
    serving/test_predictor.py::test_what_cannot_be_answered_is_one_error
formats/open_tables.py: the ingest to this place has not been completed
    storage/test_ingest.py::test_a_half_written_set_is_never_read
sources/base.py: The feature
    data/test_tables_as_they_are.py::test_a_value_of_another_kind_is_named_as_it_is_written
formats/arrow_tables.py: column
    storage/test_tables.py::test_a_missing_target_is_an_error_with_its_row
storage/artifact.py: The array
    test_model.py::test_a_missing_or_truncated_file_is_found
storage/artifact.py: The format is
    test_model.py::test_a_newer_format_is_refused
data/zero_weight_rows.py: Every sample weight is 0.
    data/test_rows_of_weight_zero.py::test_nothing_is_left
sklearn/input_checks.py: The whole number
    storage/test_kinds_of_whole_columns.py::test_labels_in_a_list_stay_apart_or_are_refused
formats/cf_conventions.py: The attribute
    storage/test_packed_arrays.py::test_what_is_not_decoded_is_refused_by_name
sources/base.py: the weight is
    data/test_weights.py::test_bad_weights_are_told
sources/column_roles.py: ... without a matching dtype and shape
    storage/test_parquet_bad_input.py::test_fixed_size_binary_needs_its_dtype_and_shape
sources/column_roles.py: The column
    data/test_weights.py::test_bad_weights_are_told
sources/column_roles.py: weight
    storage/test_source_facets.py::test_weights_that_are_no_numbers_are_refused
formats/dask_source.py: computing a block failed:
    storage/test_array_source.py::test_a_failing_dask_block_is_named
formats/dask_source.py: the Dask array
    storage/test_array_source.py::test_unknown_dask_chunks_say_how_to_know_them
sources/base.py: The columns differ from those of training:
    pipeline/test_before_training.py::test_rows_that_evaluation_would_refuse_are_refused_before_training
formats/dask_source.py: the block computed is
    storage/test_array_source.py::test_a_dask_block_unlike_its_declaration_is_an_error
formats/dask_source.py: the target block computed has shape
    storage/test_array_source.py::test_a_dask_block_unlike_its_declaration_is_an_error
formats/parquet.py: two files differ:
    storage/test_parquet_bad_input.py::test_files_that_differ_are_both_named
formats/parquet_files.py: row group
    storage/test_parquet_bad_input.py::test_a_corrupt_page_is_named_by_file_and_row_group
formats/parquet_files.py: the file has changed since the dataset was opened:
    storage/test_parquet_bad_input.py::test_a_file_that_changes_or_goes_while_open_is_named
sources/remote_store.py: http has no listing: the objects below this URL ca
    storage/test_remote.py::test_http_has_no_listing_and_says_so_where_one_is_needed
sources/remote_store.py: the server sends whole files where a part was requ
    storage/test_remote.py::test_a_server_without_ranges_is_told_apart
sources/remote_store.py: the store did not return this object:
    storage/test_faulty_stores.py::test_a_store_that_is_gone_is_one_error_within_the_deadline
sources/remote_store.py: the store refuses:
    storage/test_remote.py::test_a_refusal_is_not_repeated
formats/fsspec_file.py: the file has changed since it was opened:
    storage/test_tables.py::test_a_file_cut_short_after_it_was_opened_is_an_error
formats/joined_tables.py: two tables differ:
    storage/test_tables.py::test_tables_that_differ_are_an_error_that_names_both
storage/atomic_writes.py: ... cannot be written:
    storage/test_writer.py::test_at_every_step_the_old_one_or_the_new_one_is_there_and_the_next_process_goes_on
storage/atomic_writes.py: The directory cannot be written:
    pipeline/test_run.py::test_a_place_that_cannot_be_a_directory_is_one_clear_error
formats/checked_zarr_array.py: chunk
    storage/test_zarr_damage.py::test_a_missing_chunk_is_an_error_not_rows_of_zeros
storage/artifact.py: The arrays of this
    storage/test_artifact_attacks.py::test_an_array_larger_than_the_memory_is_refused
storage/artifact_arrays.py: what
    storage/test_artifact_attacks.py::test_a_chunk_is_decoded_to_what_the_manifest_states_and_no_more
formats/checked_zarr_array.py: a row of the array is stored in
    storage/test_strangers_files.py::test_an_array_of_damaged_width_is_refused_before_its_chunks_are_counted
formats/zarr.py: the array has shape
    storage/test_strangers_files.py::test_consolidated_metadata_that_say_something_else_are_refused
storage/untrusted_files.py: ... : the system refused to allocate memory:
    storage/test_strangers_files.py::test_sizes_that_no_memory_holds_are_an_error_in_words
storage/untrusted_files.py: process
    storage/test_paths_of_workers.py::test_a_worker_that_does_not_see_the_data_says_where_it_looked
storage/untrusted_files.py: the data have changed since they were opened
    storage/test_replaced_data.py::test_files_of_the_same_size_are_noticed
storage/untrusted_files.py: the file has
    storage/test_artifact_attacks.py::test_a_file_is_read_to_its_bound
storage/untrusted_files.py: this is
    storage/test_artifact_attacks.py::test_only_regular_files_are_read
storage/untrusted_files.py: the JSON has
    storage/test_artifact_attacks.py::test_json_is_bounded_before_it_is_parsed
formats/zarr_checked_stores.py: the array is not read:
    storage/test_zarr_codecs.py::test_pickle_is_never_made
formats/zarr.py: the array
    storage/test_zarr_codecs.py::test_a_great_many_chunks_are_counted_and_not_listed
sweep.py: Row ids run from
    test_sweep.py::test_rows_that_are_not_there_are_refused
sweep.py: The data set has no rows.
    test_sweep.py::test_a_sweep_over_no_rows_says_so
""")
"""Sites whose error takes a damaged file, a dead worker, a full disk or a value of its own: the test that makes it."""

UNTESTED = _table("""
fitting/leaf_fit.py: The weights are not finite.
    kernel values that are not finite: refused before, by their precision
solvers/direct.py: The normal equations are zero or not finite.
    kernel values that are all 0: refused before, by their precision
commands/run_reports.py: The report needs
    an installation without Bokeh
models/kernel_machine.py: The model's description is incomplete:
    a model of another release: its checksum holds, and a field is not there
formats/arrow_tables.py: 'a piece differs from its declaration: ' + (reason
    a Dask frame whose partitions are not as it declares
storage/artifact.py: The description is damaged: its checksum differs.
    fuzz_artifacts.py
formats/dask_source.py: computing the frame failed:
    a Dask frame whose partitions fail
ingestion/array_files.py: HDF5 files need h5py, which is not installed
    an installation without h5py
formats/parquet_files.py: the files cannot be listed:
    a store that fails while it lists
formats/parquet_files.py: the server does not say how large this file is
    a server that says no Content-Length
formats/fsspec_file.py: the store does not say how large the file is
    a store that says no size
formats/training_zarr.py: cannot be written:
    storage/test_zarr_damage.py
formats/checked_zarr_array.py: the chunk may not be read:
    files that may not be read, which the root user may
""")
"""Sites that no test comes to, and what it would take."""

MODULES = {
    "gpu/__init__.py": "engine/test_device.py",
    "gpu/cupy.py": "engine/test_device.py",
    "gpu/loops.py": "engine/test_gpu_loops.py",
    "cpu/__init__.py": "pipeline/test_device.py",
    "preprocessing/automatic_steps.py": "data/test_automatic.py",
    "data/class_weights.py": "test_class_weights.py",
    "preprocessing/category_steps.py": "data/test_automatic.py",
    "data/encoders.py": "data/test_tables_as_they_are.py",
    "selection/gradient_outer_product.py": "solvers/test_direction.py",
    "fitting/device_placement.py": "pipeline/test_device.py",
    "partition/fit_partition.py": "partition/test_partition.py",
    "partition/grow_tree.py": "partition/test_partition.py",
    "partition/partition_shape.py": "partition/test_partition.py",
    "models/partitioned_machine.py": "partition/test_partition.py",
    "partition/leaf_rows.py": "partition/test_partition_resume.py",
    "models/cut_tree.py": "partition/test_partition.py",
    "partition/champion_cuts.py": "registry/test_retrain.py",
    "models/calibrated_model.py": "test_intervals.py",
    "serving/open_model.py": "serving/test_predictor.py",
    "updates/update_model.py": "solvers/test_sums.py",
    "calibration/intervals.py": "test_intervals.py",
    "calibration/out_of_sample.py": "test_intervals.py",
    "fitting/calibrate.py": "test_thresholds.py",
    "calibration/thresholds.py": "test_thresholds.py",
    "calibration/probabilities.py": "test_probabilities.py",
    "runs/tune.py": "pipeline/test_tune.py",
    "registry/registry_storage.py": "registry/test_models.py",
    "registry/model_registry.py": "registry/test_models.py",
    "report/mlflow_export.py": "report/test_mlflow.py",
    "selection/median_bandwidth.py": "solvers/test_bandwidth.py",
    "formats/csv_records.py": "storage/test_csv_damage.py",
    "ingestion/ingest.py": "storage/test_ingest.py",
    "sources/object_writes.py": "registry/test_models.py",
    "sources/weighted_source.py": "data/test_weights.py",
}
"""Modules whose errors have a test file of their own: a device, a store of objects, a service."""


def test_every_site_is_provoked(made: set[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    for expression in {expression: None for expression, _ in VALUES if expression not in DONE}:
        provoked(expression, tmp_path_factory.mktemp("alone"))
    left = [str(s) for s in sites() if not any(s.file == f and s.first <= line <= s.last for f, line in made)]
    known = ELSEWHERE.keys() | UNTESTED.keys()
    missing = [site for site in left if site not in known and site.partition(":")[0] not in MODULES]
    assert not missing, "\n".join(missing)


def test_what_is_provoked_elsewhere_is() -> None:
    for test in ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8"), test
