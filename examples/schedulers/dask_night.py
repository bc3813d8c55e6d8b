"""Dask: leave a night with a cluster that runs anyway, and go: dask_night.py tcp://head:8786 /srv/nightly.

One worker trains, on its own threads; the directory is one that every worker sees. Where that worker is lost, Dask runs
the night again on another one, which goes on from the checkpoint. What was decided stands in models/decisions.jsonl.
"""

import sys
from contextlib import suppress
from pathlib import Path

from distributed import Client, fire_and_forget


def night(folder: str) -> None:
    """Runs on a worker: the paths are written out, since its working directory is another."""
    import streamkern as sk

    place = Path(folder)
    pipeline = sk.load_pipeline(place / "nightly.py", {"rows": str(place / "rows.zarr")})
    with suppress(sk.errors.BusyError):  # last night's is still at it
        sk.retrain(pipeline, place / "models")


if __name__ == "__main__":
    address, folder = sys.argv[1:]
    with Client(address) as client:
        fire_and_forget(client.submit(night, str(Path(folder).resolve()), pure=False))
