"""``streamkern ingest`` and ``inspect``, and ``predict``, ``evaluate`` and ``explain``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from streamkern.commands.resources import resources_of
from streamkern.commands.terminal import say
from streamkern.ingestion.ingest import ingest
from streamkern.inspection.inspect_dataset import inspect as inspect_data
from streamkern.progress import Display
from streamkern.report.run_status import metrics_in_words
from streamkern.serving.explain import explain
from streamkern.serving.predict_files import evaluate, predict


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


def evaluate_command(args: Namespace) -> None:
    """Print the scores of a saved model on stored rows."""
    target = args.target[0] if len(args.target) == 1 else args.target
    metrics = evaluate(
        args.model, args.data, target, where=args.where, resources=resources_of(args), read_options=args.read_options
    )
    say((json.dumps(metrics) if args.json else metrics_in_words(metrics)) + "\n")


def explain_command(args: Namespace) -> None:
    """Print the columns and directions that a model depends on."""
    found = explain(args.model, args.data, most=args.rows)
    say((json.dumps(found.to_json()) if args.json else found.text()) + "\n")


def predict_command(args: Namespace) -> None:
    """Write predictions of stored rows."""
    with Display(sys.stderr) as display:
        made = predict(
            args.model, args.data, args.out, id=args.id, scores=args.scores, probabilities=args.probabilities,
            interval=args.interval, where=args.where, format=args.format, resources=resources_of(args),
            read_options=args.read_options, overwrite=args.overwrite, on_progress=display.rows,
        )  # fmt: skip
    say((json.dumps(made.to_json()) if args.json else str(made)) + "\n")
