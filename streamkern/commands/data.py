"""``streamkern ingest`` and ``streamkern inspect``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from streamkern.commands.resources import resources_of
from streamkern.commands.terminal import say
from streamkern.ingestion.ingest import ingest
from streamkern.inspection.inspect_dataset import inspect as inspect_data
from streamkern.progress import Display


def ingest_command(args: Namespace) -> None:
    """Write tables in the training layout."""
    with Display(sys.stderr) as display:
        made = ingest(
            args.sources, args.path, target=args.target, weight=args.weight, columns=args.columns,
            time=args.time, group=args.group,
            shuffle=args.shuffle, seed=args.seed, format=args.format, dtype=args.dtype, shard=args.shard,
            compression=args.compression, keep_bits=args.keep_bits, resources=resources_of(args),
            header=not args.no_header, missing=args.missing, read_options=args.read_options, schema=args.schema,
            exclude=args.exclude or (), overwrite=args.overwrite, on_progress=display.rows,
        )  # fmt: skip
    say(f"{made}\n")


def inspect_command(args: Namespace) -> None:
    """Print the kinds, ranges and gaps of a data set."""
    found = inspect_data(
        args.data, args.target, columns=args.columns, schema=args.schema, exclude=args.exclude or (),
        header=not args.no_header, resources=resources_of(args), read_options=args.read_options,
    )  # fmt: skip
    say((json.dumps(found.to_json()) if args.json else found.text()) + "\n")
