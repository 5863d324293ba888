"""`normgauge fingerprint MODEL`: the spectrum of a model's activations, and whether the kernel
statement holds.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from normgauge.verbs.arguments import MODEL, add_output, add_settings, add_tokens, positive

if TYPE_CHECKING:
    from normgauge.live.kernel import KernelCheck
    from normgauge.live.measuring import Measured

HELP = "dead directions, and the spectrum of the activations along the depth"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    add_tokens(parser)
    parser.add_argument(
        "--forward-dtype", default="float32", choices=("float32", "float64", "bfloat16", "float16")
    )
    parser.add_argument(
        "--all-sites",
        action="store_true",
        help="the wide inputs of output and down projections too; several times the cost",
    )
    parser.add_argument(
        "--groups",
        type=positive,
        default=0,
        help="of sequences, left out in turn for the uncertainty; none unless given",
    )
    add_settings(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.fingerprint.memory import Plan
    from normgauge.live.kernel import kernel_check
    from normgauge.live.measuring import NORM_OUTPUTS, measured
    from normgauge.verbs.output import say, say_json, written
    from normgauge.verbs.places import check_output, model_folder
    from normgauge.verbs.tokens import inputs_named
    from normgauge.verbs.words.measuring import fingerprint_summary

    with model_folder(options.model, options.config) as folder:
        checkpoint = open_checkpoint(folder)
        record = _record(options, folder)
        check_output(options.out, record, folder)
        inputs = inputs_named(options, checkpoint.config, folder, options.groups)
        groups = (
            ("residual", "terminal", "schur", "taps")
            if options.all_sites
            else ("residual", "terminal", "schur")
        )
        plan = Plan({options.forward_dtype: groups}, None if options.all_sites else NORM_OUTPUTS)
        found = measured(checkpoint, inputs, plan, options.model)
    check = kernel_check(found.anatomy, found.fingerprint, found.schur)
    if options.out:
        _write(options.out, found, record)
    if options.json:
        say_json(_document(found, check))
    else:
        say([*fingerprint_summary(found, check), *written(options.out)])
    return 0


def _record(options: argparse.Namespace, folder: Any) -> dict[str, Any]:
    """What makes a run: the weights and every option that changes a number."""
    from normgauge.transport.origin import identity_of

    kept = (
        "tokens",
        "sequences",
        "length",
        "seed",
        "forward_dtype",
        "all_sites",
        "groups",
        "config",
    )
    named = {name: getattr(options, name) for name in kept}
    return {
        "verb": "fingerprint",
        "model": options.model,
        "weights": identity_of(folder).sha256 if options.out else None,
        **named,
    }


def _write(folder: str, found: Measured, record: dict[str, Any]) -> None:
    from normgauge.provenance import execution_environment
    from normgauge.schemas.fingerprint import tables
    from normgauge.verbs.places import output_folder

    metadata = {
        **execution_environment(),
        "model": record["model"],
        "weights": record["weights"],
        "inputs": found.inputs.words,
    }
    with output_folder(folder, record) as place:
        for kind in ("fingerprint", "schur", "stacks"):
            tables.write(place / f"{kind}.parquet", kind, getattr(found, kind), metadata)


def _document(found: Measured, check: KernelCheck) -> dict[str, Any]:
    from normgauge import __version__

    return {
        "normgauge": __version__,
        "architecture": found.anatomy.architecture,
        "inputs": found.inputs.words,
        "kernel": {"verdicts": check.verdicts, "largest": check.largest},
        "stacks": [
            {key: value for key, value in row.items() if key not in ("replicates", "group_samples")}
            for row in found.stacks
        ],
        "fingerprint": found.fingerprint,
        "schur": found.schur,
    }
