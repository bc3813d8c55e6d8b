"""Every error of the package says where it arose, what was expected and what to do; bad values are named.

Places where an error is made are found by reading the sources, so a new one is checked without an entry here.
``VALUES`` provokes errors that no other test provokes, and reads what they say.
"""

import ast
import functools
from collections.abc import Iterator
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
from streamkern.data import Quarantined
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.formats import ArraySource
from streamkern.kernels import feature_map_from_json, kernel_from_json
from streamkern.kernels.base import Sum
from streamkern.papers.lanczos import speedup_ratio
from streamkern.precondition.eigensystem import top_eigensystem
from streamkern.runs.solution_spectrum import rayleigh_quotient

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "streamkern"
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
KINDS |= {"UnlikeChampionError", "NoRowsError", "EmptySideError"}


def errors_made() -> Iterator[tuple[str, str, set[str | None]]]:
    """Every place of the package where a ``StreamkernError`` is made: file and line, class, and names of arguments."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith("testing/") or file == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                kind = ast.unparse(node.func).rpartition(".")[2]
                if kind in KINDS:
                    yield f"{file}:{node.lineno}", kind, {keyword.arg for keyword in node.keywords}


@pytest.mark.slow
def test_every_error_says_where_and_what_was_expected_and_what_to_do() -> None:
    for place, kind, arguments in errors_made():
        missing = {"where", "expected", "remedy"} - arguments
        if kind == "UsageError":  # what was expected of an argument is what to pass
            missing -= {"remedy"}
        assert not missing, f"{place} lacks {', '.join(sorted(missing))}"


PLAIN = {
    # as Python, NumPy, SciPy, scikit-learn, zarr, fsspec and argparse have it
    *("__init__.py", "engine/abstract_array.py", "sklearn/estimators.py", "sklearn/partial_fit.py", "cpu/lapack.py"),
    *("sklearn/calibration_mixins.py", "sources/format_rules.py", "sources/remote_store.py", "commands/parser.py"),
    "formats/zarr_checked_stores.py",
    # told as a damaged model, state or artifact by the caller
    *("data/targets.py", "data/encoders.py", "data/transforms.py", "sources/schema.py", "models/kernel_machine.py"),
    *("models/partitioned_machine.py", "calibration/serialization.py", "storage/artifact.py", "storage/serialize.py"),
    *("storage/artifact_arrays.py", "registry/model_registry.py"),
    # told by the caller, with the name of the file or the chunk
    *("sources/arrow_conversion.py", "formats/numpy_files.py", "formats/parquet_footer.py"),
    *("sources/object_writes.py", "ingestion/external_shuffle.py", "storage/atomic_writes.py"),
    *("partition/leaf_rows.py", "registry/promotion_gate.py"),
    # what cannot be
    *("memory.py", "partition/partition_shape.py"),
}
"""Files that raise other exceptions by name."""


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


def half(folder: Path, **marks: Any) -> Path:
    made = zarr_python.open_group(zarr(folder), mode="r+")
    made.attrs["streamkern"] = dict(made.attrs["streamkern"]) | (marks or {"complete": False})
    return folder / "rows.zarr"


USED_BELOW = (
    ArraySource, DaskExecutor, Quarantined, SimpleNamespace, Sum, feature_map_from_json, kernel_from_json, pd,
    rayleigh_quotient, speedup_ratio, top_eigensystem,
)  # fmt: skip

VALUES: list[tuple[str, str]] = [
    # expression, and a word of the message: the value that was got
    ("sk.Laplace(1.0)(X, X, threads=0)", "threads is 0"),
    ("sk.run(job(), resources='threads')", "threads"),
    ("run(f, train=data.augment(sk.augment.Custom(lambda rows, *more: rows[:1])))", "(1, 4)"),
    ("run(f, train=data.augment(sk.augment.Custom(lambda rows, *more: rows * np.nan)))", "not finite"),
    ("run(f, train=sk.from_arrays(X, Y).augment(sk.augment.HorizontalFlip((3, 3))))", "4 features"),
    ("data.augment(3)", "3 is not an augmentation"),
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
    ("run(f, train=sk.from_arrays(X, np.where(Y == 1, np.nan, Y)))", "row 1"),
    ("run(f, train=sk.from_arrays(X, np.where(Y == 1, np.nan, Y)), task='regression')", "row 1"),
    ("run(f, train=sk.from_arrays(np.eye(2)[np.arange(10_001) % 2], np.arange(10_001)))", "different values"),
    ("run(f, train=sk.from_arrays(X, Y.astype(str)), task='regression')", "type"),
    ("sk.Predictor(model(), max_rows=0)", "max_rows is 0"),
    ("sk.RandomFourier(sk.Cauchy(1), 8)", "Cauchy"),
    ("sk.load_pipeline(file(f, '', 'job.txt'))", "job.txt"),
    ("sk.load_pipeline(file(f, 'def pipeline(a: \"Missing\" = 1): ...'))", "Missing"),
    ("sk.Registry(f)", "no model registry"),
    ("sk.Registry(f / 'models', create=True).load()", "champion"),
    ("sk.Registry(f / 'models', create=True).promote('x')", "'x'"),
    ("sk.Registry(f / 'models', create=True).promote(3)", "version 3"),
    ("sk.Registry(f / 'models', create=True).rollback()", "earlier champion"),
    ("sk.Registry(f / 'models', create=True).prune(0)", "keep is 0"),
    ("sk.predict(model().save(f / 'm.zarr'), zarr(f, X.astype('uint8')), f / 'out.parquet')", "uint8"),
    ("sk.open_dataset(model().save(f / 'saved.zarr'))", "saved model"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.EigenPro())", "features"),
    ("run(f, train=data.augment(copies=2), centers=sk.AllRows(), solver=sk.EigenPro2())", "60 stored rows"),
    ("run(f, solver=sk.EigenPro2())", "10 centers"),
    ("run(f, features=sk.RandomFourier(sk.Gaussian(1), 8), solver=sk.EigenPro2())", "features"),
    ("sk.SGD(schedule='pegasos')", "pegasos"),
    ("sk.KernelClassifier(resources=4).fit(X, Y)", "4"),
    ("data.sample(5, weights='w')", "have no names"),
    ("sk.SGD(step=1, stages=((1, 0.1),))", "stages"),
    ("sk.from_arrays(X, Y, columns=['a'])", "1 distinct"),
    ("ArraySource(X, Y, chunk_rows=0)", "0"),
    ("sk.open_dataset(f / 'no')", "no"),
    ("sk.open_dataset(f / 'no.zarr')", "no.zarr"),
    ("sk.open_dataset(f / 'no.parquet')", "no.parquet"),
    ("sk.open_dataset(f)", ""),
    ("sk.open_dataset(f, format='csv')", "csv"),
    ("sk.open_dataset(zarr(f), target='label', columns=['a'])", "no names"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=[2.0]), columns=['a', 'a'])", "'a'"),
    ("sk.from_arrays(X, schema=3, columns=None) and sk.from_arrays({'a': [1]}, schema=3)", "3"),
    ("sk.from_arrays(pd.DataFrame([[1, 2]], columns=['a', 'a']))", "'a'"),
    ("sk.KernelRegressor().fit(X, list(pd.date_range('2026-01-01', periods=len(X), tz='UTC')))", "2026-01-01"),
    ("sk.open_dataset(parquet(f, a=[1.0], b=[[1.0]]))", "'b'"),
    ("sk.open_dataset(parquet(f, a=[1.0]), target='a')", "columns"),
    ("sk.open_dataset(file(f, 'x' * 99, 't.parquet'))", "t.parquet"),
    ("sk.write_parquet(f / 'x.parquet', iter([]))", "no blocks"),
    ("sk.write_zarr(f / 'x.zarr', X, Y, target='X')", "'X'"),
    ("sk.write_zarr(f / 'x.zarr', iter([]))", "n_rows"),
    ("sk.write_zarr(zarr(f), X)", "rows.zarr"),
    ("sk.write_zarr(f / 'x.zarr', iter([(X, Y)]), n_rows=5, target='y')", "n_rows=5"),
    ("sk.ingest(f / 'no.csv', f / 'out.zarr')", "no.csv"),
    ("sk.ingest((X, Y), f / 'out.zarr', dtype='text')", "text"),
    ("sk.ingest(pa.table({'a': ['x'], 'b': [1.0]}), f / 'out.zarr', columns=['a'], dtype='float32')", "contains text"),
    ("sk.ingest((X, Y), f / 'out.zarr', missing='zero')", "zero"),
    ("sk.ingest((X, Y), f / 'out.zarr', compression='best')", "best"),
    ("sk.ingest(X, f / 'out.zarr', target='y')", "'y'"),
    ("next(model().stream_predictions(data.split(test=0.5)[0]))", "selection of rows"),
    ("run(f, train=sk.from_arrays(X, np.array(['a', 1, 2] * 20, dtype=object)))", "int, str"),
    ("DaskExecutor(SimpleNamespace(asynchronous=True)).__enter__()", "asynchronous"),
    ("data.without([Quarantined(5, 9, '', ''), Quarantined(7, 12, '', '')])", "overlap"),
    ("data.without([Quarantined(0, 60, 'chunk 0', 'it is damaged')])", "it is damaged"),
    ("run(f, name='a') and run_locked(f)", "process"),
    ("sk.ingest(npz(f, a=X[:, 0], b=X[:5, 0]), f / 'out.zarr')", "60 and 5 rows"),
    ("sk.ingest(npz(f, X=X, a=X, b=Y), f / 'out.zarr', target=['a', 'b'])", "target 'a' is a column of float32[60, 4]"),
    ("sk.write_zarr(file(f, '', 'a') / 'x.zarr', X)", "a/x.zarr"),
    ("sk.ingest(hdf5(f), f / 'out.zarr')", "empty.h5"),
    ("sk.open_dataset(npz(f, X=X))", "a.npz"),
    ("sk.open_dataset('gopher://host/a.parquet')", "gopher"),
    ("sk.ingest(pa.table({'a': [1.0, None], 'b': [0, 1]}), f / 'out.zarr', target='b', missing='error')", "row 1"),
    (
        "sk.Predictor(sk.KernelRegressor().fit(pd.DataFrame(X, columns=list('abcd')), Y).model_)(X, list('abcx'))",
        "columns",
    ),
    ("sk.Laplace(1.0, norm=1) + sk.Gaussian(1.0)", "different norms"),
    ("sk.KernelRegressor(centers=sk.Given(X[:3]), metric=sk.AGOP()).fit(X, Y)", "given centers"),
    ("sk.KernelRegressor(centers=2, metric=sk.AGOP()).fit(X[:3], Y[:3])", "A metric is learned"),
    (
        "sk.KernelRegressor(centers=2, metric=sk.AGOP()).fit(data.augment(sk.augment.GaussianNoise(0.1)))",
        "augmented rows",
    ),
    ("top_eigensystem(np.full((5, 5), np.inf), 2)", "finite"),
    ("speedup_ratio(np.ones(3), 9)", "k is 9"),
    ("rayleigh_quotient(np.eye(3), np.zeros(3))", "zero"),
    ("sk.Laplace(1) * -1.0", "-1"),
    ("Sum(())", "()"),
    ("kernel_from_json({'name': 'Sinc'})", "Sinc"),
    ("kernel_from_json({'name': 'Laplace', 'size': 3})", "size"),
    ("feature_map_from_json({'name': 'Fourier'})", "Fourier"),
    ("feature_map_from_json({'name': 'Identity', 'M': 3})", "M"),
    ("sk.ingest(np_file(f, np.array([{}], dtype=object)), f / 'out.zarr')", "objects"),
    ("sk.ingest(file(f, 'x', 'a.npy'), f / 'out.zarr')", "a.npy"),
    ("sk.write_zarr(f / 'x.zarr', iter([(X, Y), (X[:, :2], Y)]), n_rows=120, target='y')", "(60, 2)"),
    ("sk.open_dataset(half(f))", "half-written"),
    ("sk.open_dataset(half(f, format=9, complete=True))", "9"),
    ("sk.open_dataset(file(f, 'x', 'a.zarr'))", "a.zarr"),
    ("sk.open_dataset(group(f, a=np.ones((3, 2)), b=np.ones(4)), target='b')", "3 rows"),
    ("sk.open_dataset(group(f, a=np.ones((3, 0))))", "no features"),
    ("sk.open_dataset(group(f, a=np.ones((3, 2))) / 'a', target='y')", "'y'"),
]


@pytest.mark.parametrize(("expression", "word"), VALUES, ids=[expression[:60] for expression, _ in VALUES])
def test_it_names_what_it_got(expression: str, word: str, tmp_path: Path) -> None:
    data = sk.from_arrays(X, Y)
    names = {"f": tmp_path, "data": data}
    with pytest.raises(sk.StreamkernError) as caught:
        eval(expression, globals() | names)
    told = str(caught.value)
    assert any(each in told for each in word.split("|")), told
    assert "\n  where: " in told
    assert "\n  expected: " in told or "\n  do: " in told
    assert "Traceback" not in told
