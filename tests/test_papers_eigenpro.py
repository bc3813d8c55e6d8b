"""Table 3 of the EigenPro paper and its overhead at reduced size, from the pipelines that make them at full size."""

from pathlib import Path
from types import ModuleType

import pytest

import streamkern as sk
from tests.modules import module_at

FOLDER = Path(__file__).parent.parent / "pipelines" / "papers"
SMALL = {"rows": "600", "features": "400", "test_rows": "100", "batch": "64", "q": "40", "subsample": "500"}

pytestmark = pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="Debian's package dataset-fashion-mnist is missing"
)


def module(name: str) -> ModuleType:
    return module_at(FOLDER / f"{name}.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A folder to run in, so that the images are written to zarr once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("eigenpro"))
        yield


def error(**settings: str) -> float:
    """Mean squared error on the training images at the end."""
    found = sk.run(sk.load_pipeline(FOLDER / "eigenpro.py", SMALL | settings), f"runs/{settings['method']}")
    assert len(found["history"]) == int(settings["epochs"])
    return float(found["metrics"]["train"]["mse"])


@pytest.mark.slow
@pytest.mark.parametrize(("basis", "penalty"), [("kernel", "0"), ("fourier", "0"), ("fourier", "1e-6")])
def test_eigenpro_needs_an_eighth_of_the_epochs(place: None, basis: str, penalty: str):
    """For the same error on the training images, in the same batches and averaged as well."""
    settings = {"basis": basis, "penalty": penalty}
    assert error(**settings, method="eigenpro", epochs="2") < error(**settings, method="sgd-average", epochs="16")


@pytest.mark.slow
def test_the_table_is_printed(place: None, capsys: pytest.CaptureFixture[str]):
    small = "--rows 300 --test-rows 200 --epochs 3 --sgd-epochs 4 --set subsample=200 q=20 --ridges 1e-5 1e-4"
    module("eigenpro").main(small.split())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lowest", "error", "ridge", "1e-05", "ridge", "0.0001"]
    assert [line[:10].strip() for line in lines[1:6]] == ["exact", "SGD, last", "SGD, avera", "EigenPro,", "EigenPro,"]
    assert Path("runs/eigenpro/kernel-exact-1e-05/result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["kernel", "fourier"])
def test_overhead_is_printed(place: None, basis: str, capsys: pytest.CaptureFixture[str]):
    """Times themselves are for a quiet machine: here, that both sides train and that neither is many times slower."""
    small = "--rows 600 --features 300 --subsample 300 --batch 128 --pairs 2 --q 20"
    module("eigenpro_overhead").main(["--basis", basis, *small.split()])
    text = capsys.readouterr().out
    assert text.startswith(f"{basis}, k = 20: EigenPro takes ")
    assert 0.02 < float(text.split("takes ")[1].split()[0]) < 50
