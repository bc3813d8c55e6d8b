"""``streamkern predict``, ``streamkern evaluate`` and ``streamkern explain``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from streamkern.commands.resources import resources_of
from streamkern.commands.terminal import say
from streamkern.progress import Display
from streamkern.report.run_status import metrics_in_words
from streamkern.serving.explain import explain
from streamkern.serving.predict_files import evaluate, predict


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
