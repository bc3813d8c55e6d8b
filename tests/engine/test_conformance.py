"""Every engine is the reference to rounding, verb by verb; and the reference alone trains and predicts."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu.engine import HostEngine
from streamkern.engine import Engine
from streamkern.engine.base import KERNEL_TILE
from streamkern.engine.packed_triangle import packed_size, unpacked
from streamkern.errors import NumericalError
from streamkern.execute import ThreadsExecutor
from streamkern.gpu.engine import DeviceEngine
from streamkern.kernels import Expansion
from streamkern.kernels.feature_maps import RandomFourier
from tests.device import HostDevice, StrictDevice

REFERENCE = Engine()
ENGINES: dict[str, Any] = {
    "host": HostEngine,
    "device": lambda: DeviceEngine(HostDevice()),
    "strict device": lambda: DeviceEngine(StrictDevice()),
}
P = 300
rng = np.random.default_rng(0)
Z, X, V = rng.normal(size=(P, 7)), rng.normal(size=(90, 7)), rng.normal(size=(P, 70))
W, SPD = rng.normal(size=(P, 3)), Z @ Z.T + 5.0 * np.eye(P)


def expansion(engine: Engine, dtype: Any = np.float64) -> Expansion:
    return Expansion(sk.Laplace(3.0), Z.astype(dtype), engine)


def _rows_alone(K: Any) -> Any:
    """What ``kernel_rows`` gives of a symmetric matrix: nothing else is to be looked at."""
    found = np.full_like(K, np.nan)
    for start in range(0, len(K), KERNEL_TILE):
        found[start : start + KERNEL_TILE, : start + KERNEL_TILE] = K[
            start : start + KERNEL_TILE, : start + KERNEL_TILE
        ]
    return found


def of_l1(engine: Engine, dtype: Any, kernel: Any = None, d: int = 7) -> Expansion:
    """A kernel of L1 distances; rows of 7 features are narrow on a device, of 70 not."""
    wide = np.tile(Z, (1, d // 7))
    return Expansion(kernel or sk.Laplace(9.0, norm=1), wide.astype(dtype), engine)


SIGNS = np.where(rng.random((90, 3)) < 0.5, -1.0, 1.0)

VERBS: dict[str, Any] = {
    "block of L1": lambda e, k, t: e.block(of_l1(e, t), X.astype(t)),
    "predict of L1": lambda e, k, t: e.predict(of_l1(e, t), X.astype(t), W.astype(t)),
    "predict of wide L1": lambda e, k, t: e.predict(
        of_l1(e, t, sk.Laplace(90.0, norm=1), 70), np.tile(X, (1, 10)).astype(t), W.astype(t)
    ),
    "pull of L1": lambda e, k, t: e.pull(of_l1(e, t), X.astype(t), W.astype(t), lambda F, rows: F[:, :2], 2),
    "gradients": lambda e, k, t: e.gradients(k, X.astype(t), W.astype(t), SIGNS),
    "gradients of the sum of outputs": lambda e, k, t: e.gradients(k, X.astype(t), W.astype(t)),
    "gradients of L1": lambda e, k, t: e.gradients(of_l1(e, t), X.astype(t), W.astype(t), SIGNS),
    "gradients of angles": lambda e, k, t: e.gradients(of_l1(e, t, sk.NTK(2)), X.astype(t), W.astype(t), SIGNS),
    "kernel_matrix of L1": lambda e, k, t: e.kernel_matrix(of_l1(e, t), 200),
    "block": lambda e, k, t: e.block(k, X.astype(t)),
    "predict": lambda e, k, t: e.predict(k, X.astype(t), W.astype(t)),
    "wide pull": lambda e, k, t: e.pull(k, X.astype(t), W, lambda F, rows: F[:, :2], 2),
    "pull": lambda e, k, t: e.pull(k, X.astype(t), W.astype(t), lambda F, rows: F[:, :2], 2),
    "panels": lambda e, k, t: np.concatenate([phi.copy() for _, phi in e.panels(k, X.astype(t))]),
    "values": lambda e, k, t: e.values(k, X.astype(t)),
    "kernel_values": lambda e, k, t: e.kernel_values(k, X.astype(t)),
    "covariance": lambda e, k, t: e.covariance(k, X.astype(t), V),
    "kernel_matrix": lambda e, k, t: e.kernel_matrix(k, 200),
    "kernel_rows": lambda e, k, t: np.concatenate([below[:, 0] for _, below in e.kernel_rows(k, 200)]),
    "kernel_rows of the dtype": lambda e, k, t: np.concatenate([below[:, 0] for _, below in e.kernel_rows(k, 200, t)]),
    "kernel_product": lambda e, k, t: e.kernel_product(k, V),
    "right_factor": lambda e, k, t: e.right_factor(V.astype(t)).times(W.T.astype(t) @ V.astype(t)),
    "product": lambda e, k, t: e.product(SPD.astype(t), V.astype(t)),
    "product_t": lambda e, k, t: e.product_t(V.astype(t), W.astype(t)),
    "symmetric_product": lambda e, k, t: e.symmetric_product(_rows_alone(SPD.astype(t)), W.astype(t)),
    "row_squares": lambda e, k, t: e.row_squares(V.astype(t)),
    "gram": lambda e, k, t: e.gram(V.astype(t)),
    "gram_product": lambda e, k, t: e.gram_product(np.tril(SPD).astype(t), W.astype(t), lower=True),
    "kernel_factor": lambda e, k, t: e.kernel_factor(k, 0.1),
    "cholesky": lambda e, k, t: e.cholesky(SPD.copy()),
    "condition": lambda e, k, t: np.array(e.condition(np.linalg.cholesky(SPD), np.abs(SPD).sum(axis=0).max())),
    "orthonormal": lambda e, k, t: e.orthonormal(SPD.copy(), 1e-9)[1],
    "spd_solve": lambda e, k, t: e.spd_solve(np.tril(SPD), W.copy()),
    "triangular_solve": lambda e, k, t: e.triangular_solve(np.tril(SPD), W, lower=True, transposed=True),
    "triangular_solve of many columns": lambda e, k, t: e.triangular_solve(
        np.tril(SPD).astype(t), np.tile(V, (1, 5)), lower=True
    ),
    "mirror": lambda e, k, t: e.mirror(np.tril(SPD)),
    "eigh": lambda e, k, t: e.eigh(SPD, top=3)[0],
    "top_eigenvalue": lambda e, k, t: np.array(e.top_eigenvalue(lambda v: SPD @ v, P)),
    "pivoted_qr": lambda e, k, t: np.abs(e.pivoted_qr(W)[1]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ENGINES)
def test_a_verb_is_the_reference(name: str, verb: str, dtype: Any):
    call, engine = VERBS[verb], ENGINES[name]()
    expected, found = (call(e, expansion(e, dtype), dtype) for e in (REFERENCE, engine))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=scale * (2e-4 if dtype == np.float32 else 1e-10))


@pytest.mark.parametrize("name", ["host", "device"])
def test_threads_and_pickling_change_no_bit(name: str):
    engine = ENGINES[name]()
    with ThreadsExecutor(3) as executor:
        for verb in (
            "kernel_matrix", "kernel_product", "product", "gram", "kernel_factor", "values",
            "triangular_solve of many columns",
        ):  # fmt: skip
            alone = VERBS[verb](engine, expansion(engine, np.float32), np.float32)
            bound = engine.bound(executor)
            np.testing.assert_array_equal(VERBS[verb](bound, expansion(bound, np.float32), np.float32), alone)
    there = pickle.loads(pickle.dumps(expansion(engine)))
    np.testing.assert_array_equal(there.block(X), expansion(engine).block(X))


@pytest.mark.parametrize("engine", [REFERENCE, HostEngine()], ids=lambda engine: engine.name)
def test_sums_of_a_gram_matrix_are_packed(engine: Engine):
    packed = engine.zeros((packed_size(P),))
    for part in (V.T[:40], V.T[40:]):
        engine.add_gram(packed, part)
    A = engine.mirror(unpacked(packed, P, engine))
    np.testing.assert_allclose(A, V @ V.T, atol=1e-11)


@pytest.mark.parametrize("name", ["host", "device"])
def test_a_matrix_that_is_not_positive_is_one_error(name: str):
    engine = ENGINES[name]()
    for call in (lambda: engine.cholesky(-SPD), lambda: engine.kernel_factor(expansion(engine), -9.0)):
        with pytest.raises(NumericalError, match="not positive definite"):
            call()


def test_dependent_rows_are_left_out():
    rows, basis = REFERENCE.orthonormal(Z @ Z.T, 1e-9)
    assert len(rows) == len(basis) == 7
    np.testing.assert_allclose(basis.T @ (Z[rows] @ Z[rows].T) @ basis, np.eye(7), atol=1e-10)
    with pytest.raises(NumericalError, match="not positive definite"):
        REFERENCE.orthonormal(np.zeros((3, 3)), 1e-9)


def test_features_are_evaluated_by_the_engine_of_the_problem():
    basis = RandomFourier(sk.Gaussian(2.0), 40).basis(7, np.dtype(np.float64))
    host = basis.predict(X, W[:40])
    basis.engine = REFERENCE
    np.testing.assert_allclose(basis.predict(X, W[:40]), host, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.05, 1.0])
def test_the_largest_eigenvalue_is_approached_from_below_in_few_products(decay: float):
    """A power iteration ends 2% below where the eigenvalues fall most slowly, and takes 34 products for the next."""
    spectrum, products = 3.0 / (1.0 + decay * np.arange(2000)), 0

    def matvec(v: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        return spectrum * v

    top = REFERENCE.top_eigenvalue(matvec, len(spectrum))
    assert 0.985 * 3.0 <= top <= 3.0 * (1 + 1e-12)
    assert products <= 30


def test_the_largest_eigenvalue_of_extremes():
    assert REFERENCE.top_eigenvalue(lambda v: 7.0 * v, 1) == pytest.approx(7.0)
    assert REFERENCE.top_eigenvalue(lambda v: 0.0 * v, 50) == 0.0
    assert np.isnan(REFERENCE.top_eigenvalue(lambda v: np.full_like(v, np.inf), 50))
    few = np.diag([1.0, 2.0, 5.0])  # as many products as there are eigenvalues
    assert REFERENCE.top_eigenvalue(lambda v: few @ v, 3) == pytest.approx(5.0)


PROGRAM = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import numpy as np
import streamkern as sk
from streamkern.cpu import default_engine
assert default_engine().name == "numpy"
rng = np.random.default_rng(0)
X = rng.normal(size=(900, 5)).astype("float32")
y = (X[:, 0] > 0).astype(int)
for settings in ({}, {"solver": sk.EigenPro(epochs=2)}, {"solver": sk.Falkon(epochs=3)}, {"kernel": sk.NTK(2)}):
    model = sk.KernelClassifier(**({"kernel": sk.Laplace(3.0)} | settings), centers=sk.Uniform(80))
    assert model.fit(sk.from_arrays(X, y).augment(sk.augment.GaussianNoise(0.1), copies=2)).score(X, y) > 0.9
model.save(sys.argv[1])
assert (sk.load_model(sys.argv[1]).predict(X) == model.predict(X)).all()
assert "numba" not in sys.modules
print("trained")
"""


@pytest.mark.slow
def test_a_model_trains_and_predicts_where_no_compiler_is(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model.zarr")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "trained", done.stderr
