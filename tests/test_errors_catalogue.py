"""Every error of the package says where it arose, what was expected and what to do; bad values are named.

A site is a place in the package where a ``StreamkernError`` is made. Sites are found by reading the sources, so a new
one is checked without an entry here. ``VALUES`` provokes errors of arguments and reads what they say.
"""

from __future__ import annotations

import ast
import functools
import sys
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
from streamkern.papers.lanczos import speedup_ratio
from streamkern.precondition.eigensystem import randomized_eigensystem, top_eigensystem
from streamkern.registry.promotion_gate import Gate
from streamkern.runs.solution_spectrum import effective_dimension, rayleigh_quotient
from streamkern.storage.serialize import unflatten
from streamkern.sweep import gather

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "streamkern"
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
KINDS |= {"UnlikeChampionError", "NoRowsError", "EmptySideError"}


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
    ("run(f, centers=sk.Given(np.ones((3, 9))))", "(3, 9)"),
    ("run(f, train=sk.from_arrays(np.repeat(X[:5], 12, axis=0), Y), centers=sk.KMeans(10))", "5 distinct"),
    ("plan(centers=sk.Uniform(600))", "600 rows"),
    ("sk.plan(job(), memory='4GiB', resources=sk.Resources(worker_memory='100MiB'))", "100.0 MiB"),
    ("sk.Laplace(1.0)(X, X, threads=0)", "threads is 0"),
    ("sk.run(job(), memory='1GiB', resources=sk.Resources('2GiB'))", "1GiB"),
    ("sk.run(job(), resources='threads')", "threads"),
    ("sk.open_dataset(zarr(f), target='label', on_corrupt='ignore')", "ignore"),
    ("run(f, train=data.augment(sk.augment.Custom(lambda rows, *more: rows[:1])))", "(1, 4)"),
    ("run(f, train=data.augment(sk.augment.Custom(lambda rows, *more: rows * np.nan)))", "not finite"),
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
    ("sk.Impute('constant', value=np.inf)", "inf"),
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
    ("sk.Laplace(1)(X[0], X)", "1 dimensions"),
    ("sk.Laplace(1)(X, X[:, :2])", "2"),
    ("sk.Laplace(1).matvec(X, X, np.ones((3, 1)))", "3 rows"),
    ("sk.RandomFourier(sk.Cauchy(1), 8)", "Cauchy"),
    ("sk.RadialProfile(lambda t: t).to_json()", "lambda"),
    ("sk.KernelClassifier(scaling='unit').fit(X, Y)", "unit"),
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
    ("sk.EigenPro(momentum=0.5, projection='delayed')", "momentum"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.EigenPro())", "features"),
    ("run(f, centers=sk.Uniform(1), solver=sk.EigenPro(projection='inexact'))", "1 centers"),
    ("run(f, train=data.augment(copies=2), centers=sk.AllRows(), solver=sk.EigenPro2())", "60 stored rows"),
    ("run(f, solver=sk.EigenPro2())", "10 centers"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.EigenPro2())", "features"),
    ("run(f, centers=sk.AllRows(), solver=sk.Falkon())", "AllRows"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.Falkon())", "features"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.Logistic())", "features"),
    ("run(f, task='regression', solver=sk.Logistic())", "1 column"),
    ("sk.SGD(schedule='pegasos')", "pegasos"),
    ("sk.ExponentialPower(1.0, 1.5, norm=1)", "1.5"),
    ("sk.KernelClassifier(preprocess=3).fit(X, Y)", "preprocess is 3"),
    ("sk.KernelClassifier(memory='much').fit(X, Y)", "much"),
    ("sk.KernelClassifier(threads=0).fit(X, Y)", "threads is 0"),
    ("sk.KernelClassifier(resources=4).fit(X, Y)", "4"),
    ("data.sample(5, weights='w')", "have no names"),
    ("sk.from_arrays(X, X).sample(5, stratify=True)", "no classes"),
    ("sk.SGD(step=1, stages=((1, 0.1),))", "stages"),
    ("sk.corollary_1(9, 100)", "9"),
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
    ("sk.ingest(pa.table({'a': ['x'], 'b': [1.0]}), f / 'out.zarr', columns=['a'], dtype='float32')", "contains text"),
    ("sk.ingest((X, Y), f / 'out.zarr', missing='zero')", "zero"),
    ("sk.ingest((X, Y), f / 'out.zarr', compression='best')", "best"),
    ("sk.ingest((X, Y), zarr(f) and file(f, '', 'out.zarr'))", "out.zarr"),
    ("sk.ingest(X, f / 'out.zarr', target='y')", "'y'"),
    ("sk.ingest(file(f, '', 'a.csv'), f / 'out.zarr')", "a.csv"),
    ("sk.ingest(file(f, 'a,b', 'a.csv'), f / 'out.zarr')", "a.csv"),
    ("next(model().stream_predictions(data.split(test=0.5)[0]))", "selection of rows"),
    ("run(f, train=sk.from_arrays(X, np.array(['a', 1, 2] * 20, dtype=object)))", "int, str"),
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
    ("sk.KernelRegressor(centers=sk.Given(X[:3]), metric=sk.AGOP()).fit(X, Y)", "given centers"),
    ("sk.KernelRegressor(centers=2, metric=sk.AGOP()).fit(X[:3], Y[:3])", "A metric is learned"),
    (
        "sk.KernelRegressor(centers=2, metric=sk.AGOP()).fit(data.augment(sk.augment.GaussianNoise(0.1)))",
        "augmented rows",
    ),
    ("run(f, train=data.augment(copies=2), partition=sk.Partition())", "augmented or repeated"),
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
    ("command('plan')", "pipeline"),
    ("command('retrain', file(f, 'def pipeline(): ...'))", "registry"),
    ("command('models', sk.Registry(f / 'm', create=True) and f / 'm', 'promote')", "version"),
    ("command('plan', 'a.py', '--set', 'rows')", "'rows'"),
    ("command('status', f)", "no run"),
    ("command('run', f / 'no.py')", "no.py"),
]


@pytest.mark.parametrize(("expression", "word"), VALUES, ids=[expression[:60] for expression, _ in VALUES])
def test_it_names_what_it_got(expression: str, word: str, tmp_path: Path) -> None:
    data = sk.from_arrays(X, Y)
    names = {"f": tmp_path, "data": data, "augmented": data.augment(sk.augment.GaussianNoise(1))}
    with pytest.raises((sk.StreamkernError, Told)) as caught:
        eval(expression, globals() | names)
    told = str(caught.value)
    assert any(each in told for each in word.split("|")), told
    assert "\n  where: " in told
    assert "\n  expected: " in told or "\n  do: " in told
    assert "Traceback" not in told
