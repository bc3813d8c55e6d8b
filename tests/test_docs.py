"""The Python of the documentation runs as it is printed, and the picture is drawn by its script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk

DOCS = Path(__file__).parent.parent / "docs"
FASHION = Path("/usr/share/datasets/fashion-mnist")


def run(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL))


def test_preprocessing_runs(tmp_path: Path) -> None:
    assert float(run(blocks("preprocessing.md"), tmp_path)) > 0.9
    assert (tmp_path / "model.zarr").is_dir()


def test_augmentation_runs(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 784), dtype=np.uint8)
    sk.write_zarr(str(tmp_path / "images.zarr"), images, np.arange(50) % 5, target="label")
    assert run(blocks("augmentation.md") + "\nprint(len(train))", tmp_path) == "100000\n"


@pytest.mark.skipif(not FASHION.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_picture_of_augmented_rows_is_the_one_its_script_draws(tmp_path: Path) -> None:
    script = DOCS / "img" / "augmentations.py"
    subprocess.run([sys.executable, script, FASHION, tmp_path / "drawn.png"], check=True, capture_output=True)
    drawn, kept = (tmp_path / "drawn.png").read_bytes(), (DOCS / "img" / "augmentations.png").read_bytes()
    assert len(kept) < 100_000
    assert drawn[:33] == kept[:33]  # the signature, and the header with width and height
    assert abs(len(drawn) - len(kept)) < 2000  # compressors differ
