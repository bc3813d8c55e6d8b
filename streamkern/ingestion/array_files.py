"""Files of named arrays that ``ingest`` converts: HDF5, by the optional h5py, and archives of NumPy's arrays."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from streamkern.errors import StorageError, UsageError
from streamkern.formats.cf_conventions import Packing, packing_of
from streamkern.formats.fsspec_file import TableFile
from streamkern.formats.named_arrays import NamedArrays, StoredRows, may_be_read, read_of, roles_of
from streamkern.formats.numpy_files import NumpyArray
from streamkern.sources.column_roles import Request
from streamkern.types import Array


class Hdf5Array(StoredRows):
    """One dataset of an HDF5 file."""

    def __init__(
        self, file: TableFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], chunk: tuple[int, ...] | None,
        packing: Packing | None = None,
    ) -> None:  # fmt: skip
        self._file, self._name = file, name
        self._chunk, self.packing = chunk, packing
        self.where = where_of(file, name)
        self.shape, self.dtype = shape, dtype if packing is None else packing.dtype

    def read(self, a: int, b: int) -> Array:
        with self._file.explaining("chunks that decode"), _opened(self._file) as opened:
            stored = _require_inside(opened[self._name], self.where)
            stored = stored.asstr() if self.dtype == object else stored
            rows = np.asarray(stored[a:b])
        return rows if self.packing is None else self.packing.values(rows)

    def holding(self, rows: int, text: int, kept: bool) -> tuple[int, int]:
        """Count the compressed chunk and two buffers, once: HDF5 serves one thread at a time."""
        if self._chunk is None:
            return 0, 0
        stored = math.prod(map(min, self._chunk, self.shape)) * self.dtype.itemsize
        return 0, 3 * stored


def where_of(file: TableFile, name: str) -> str:
    """Return the description of a data set, for messages."""
    return f"{file.path}, dataset {name}"


@contextlib.contextmanager
def _opened(file: TableFile) -> Iterator[Any]:
    import h5py

    if file.local:
        with h5py.File(file.unchanged(), "r") as opened:
            yield opened
    else:
        with file.open() as stream, h5py.File(stream, "r") as opened:
            yield opened


def _require_inside(stored: Any, where: str) -> Any:
    """A virtual dataset, or one of external storage, would be read from any path that it names."""
    if not (stored.is_virtual or stored.external):
        return stored
    raise StorageError(
        "the values of this dataset are stored in other files",
        where=where,
        expected="values in the file itself, without external storage or virtual datasets",
        remedy="if you trust the file, copy the values into a new one: new[name] = file[name][...] with h5py",
    )


def open_hdf5(file: TableFile, request: Request) -> NamedArrays:
    """Open the datasets of a file, named as ``group/dataset``; their values must be in the file itself."""
    try:
        import h5py
    except ImportError as error:
        raise UsageError(
            "HDF5 files need h5py, which is not installed",
            where=file.path,
            expected="the extra `hdf5`",
            remedy="pip install 'streamkern[hdf5]'",
        ) from error
    arrays: dict[str, Hdf5Array] = {}
    index: list[str] = []  # coordinates that count the rows

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.shape:
            text = h5py.check_string_dtype(node.dtype) is not None
            scale = node.attrs.get("NAME") if node.attrs.get("CLASS") == b"DIMENSION_SCALE" else None
            if isinstance(scale, bytes) and scale.startswith(b"This is a netCDF dimension but not"):
                return  # without values
            if text or node.dtype.kind in "biuf" or node.dtype.names is not None:
                packing = None
                if node.dtype.names is None and may_be_read(name, opened, request):
                    packing = packing_of(dict(node.attrs), node.dtype, node.shape, where_of(file, name))
                dtype = np.dtype(object) if text else node.dtype
                arrays[name] = Hdf5Array(file, name, node.shape, dtype, node.chunks, packing)
                if scale is not None and arrays[name].dtype.kind in "iu" and node.ndim == 1:
                    index.append(name)

    with file.explaining("an HDF5 file"), _opened(file) as opened:
        opened.visititems(visit)
    if not arrays:
        raise StorageError(
            "there are no arrays of numbers or text in this file",
            where=file.path,
            expected="data sets of shape (n, ...)",
            remedy="check the file",
        )
    missing = [name for name, array in arrays.items() if array.packing is not None and array.packing.missing]
    roles = roles_of(
        arrays, request, file.path, lambda name: arrays[name].where, nameable=True, index=index, missing=missing
    )
    with file.explaining("an HDF5 file"), _opened(file) as opened:
        for name in read_of(roles):
            _require_inside(opened[name], arrays[name].where)
    return NamedArrays(arrays, roles, request, [file], remote=file.remote)


def open_npz(file: TableFile, request: Request) -> NamedArrays:
    """Open the arrays of an archive by name."""
    with file.explaining("a zip archive of arrays"), file.open() as stream, zipfile.ZipFile(stream) as archive:
        members = archive.namelist()
    arrays = {name.removesuffix(".npy"): NumpyArray(file, name) for name in members}
    roles = roles_of(arrays, request, file.path, lambda name: arrays[name].where, nameable=True)
    return NamedArrays(arrays, roles, request, [file])


READERS = {"hdf5": open_hdf5, "npz": open_npz}
"""Readers by the kind of a file, for ``open_tables``."""
