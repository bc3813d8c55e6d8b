"""Tables in files of every kind."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd

import streamkern as sk


def save(table: pd.DataFrame, path: Path) -> Path:
    """Write a table in the format of the file's name; npy and zarr hold one array of all columns."""
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    elif path.suffix == ".feather":
        table.to_feather(path)
    elif path.suffix == ".npy":
        np.save(path, table.to_numpy())
    elif path.suffix == ".npz":
        np.savez(path, **{name: table[name].to_numpy() for name in table})
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name in table:
                file[name] = table[name].to_numpy()
    else:
        sk.write_zarr(path, table.to_numpy())
    return path
