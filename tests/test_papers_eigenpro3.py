"""Table 2, and the shapes of Figures 2 and 4, of the EigenPro 3 paper, from its pipeline at small size."""

from pathlib import Path

import pytest

import streamkern as sk

PIPELINE = Path(__file__).parents[1] / "pipelines" / "papers" / "eigenpro3.py"

pytestmark = pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").is_dir(),
    reason="Debian's package dataset-fashion-mnist is not installed",
)


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory):
    """Test accuracy of a run."""
    folder = tmp_path_factory.mktemp("eigenpro3")

    def accuracy(**settings: object) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            job = sk.load_pipeline(PIPELINE, {name: str(value) for name, value in settings.items()})
            return sk.run(job, folder / "run")["metrics"]["test"]["accuracy"]

    return accuracy


@pytest.mark.slow
@pytest.mark.parametrize(("selection", "paper"), [("random", 0.7624), ("kmeans", 0.7866)])
def test_table_2_is_reached_with_a_hundred_centers(accuracy, selection, paper):
    assert accuracy(selection=selection, centers=100) > paper - 0.003


@pytest.mark.slow
def test_at_a_fixed_number_of_centers_more_images_help(accuracy):
    alone, some, many = (accuracy(images=images, centers=300, epochs=10) for images in (300, 1_000, 10_000))
    assert alone + 0.02 < some < many


@pytest.mark.slow
def test_noisy_copies_help_where_every_image_is_a_center(accuracy):
    plain = accuracy(images=1_000, centers=1_000)
    noisy = accuracy(images=1_000, centers=1_000, rows=30_000, noise=0.03, epochs=1)
    assert plain < noisy
