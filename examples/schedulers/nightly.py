"""The pipeline of the examples in this directory: a store that grows, a tenth of its rows held back.

Each row keeps its place in the split as long as rows are only appended.
"""

import streamkern as sk


def pipeline(rows: str = "rows.zarr", centers: int = 1000, bandwidth: float = 5.0) -> sk.Pipeline:
    """A classifier of the column ``label``.

    Args:
        rows: the store.
        centers: how many.
        bandwidth: of the Laplace kernel, in the units of the rows.
    """
    train, test = sk.open_dataset(rows, target="label").split(test=0.1)
    return sk.Pipeline(
        train=train,
        test=test,
        kernel=sk.Laplace(bandwidth),
        centers=sk.Uniform(centers),
        solver=sk.EigenPro(),
        name="nightly",
    )
