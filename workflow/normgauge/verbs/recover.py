"""`normgauge recover --demo` or `MODEL`: which stored weights a model's activations determine, bit
for bit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgauge.verbs.arguments import MODEL, add_output, add_settings, count, positive

if TYPE_CHECKING:
    from normgauge.checkpoints.opening import Checkpoint

HELP = (
    "exact recovery of stored weights from activations: of a model, or of one small random "
    "block (--demo)"
)
ROWS, DEMO_ROWS = 8192, 1024
DEMO: dict[str, Any] = {
    "n_layer": 1,
    "n_embd": 48,
    "n_head": 4,
    "vocab_size": 128,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)
    chosen.add_argument(
        "--demo", action="store_true", help="one block of a random GPT-2, in seconds"
    )
    parser.add_argument(
        "--rows", type=positive, help=f"token positions observed ({ROWS}; {DEMO_ROWS} for the demo)"
    )
    parser.add_argument("--seed", type=count, default=0, help="of what is drawn (0)")
    add_settings(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.verbs.output import say, say_json, written
    from normgauge.verbs.places import check_output, model_folder, output_folder
    from normgauge.verbs.words.measuring import recover_summary

    rows = options.rows or (DEMO_ROWS if options.demo else ROWS)
    record = {
        "verb": "recover",
        "model": options.model or "demo",
        "rows": rows,
        "seed": options.seed,
        "config": options.config,
    }
    with tempfile.TemporaryDirectory() as scratch:
        if options.demo:
            check_output(options.out, record)
            checkpoint = demo_checkpoint(options.seed)
            found = recovered(checkpoint, Path(scratch), rows, options.seed)
        else:
            from normgauge.transport.origin import identity_of

            with model_folder(options.model, options.config) as folder:
                checkpoint = open_checkpoint(folder)
                record["weights"] = identity_of(folder).sha256 if options.out else None
                check_output(options.out, record, folder)
                found = recovered(checkpoint, Path(scratch), rows, options.seed)
        if options.out:
            with output_folder(options.out, record) as place:
                _write(place, Path(scratch), found, record)
    if options.json:
        say_json({"architecture": checkpoint.config.architectures[0], "rows": rows, "map": found})
    else:
        say(
            [
                *recover_summary(checkpoint.config.architectures[0], found, rows),
                *written(options.out),
            ]
        )
    return 0


def demo_checkpoint(seed: int) -> Checkpoint:
    """A GPT-2 of one small block with random weights, gains and biases, in float16: a grid on which
    values can be told apart.
    """
    import torch
    import transformers

    from normgauge.live.models import checkpoint_of

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPT2Model(transformers.GPT2Config(**DEMO))
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.1 * torch.randn(parameter.shape)
    return checkpoint_of(model.half())


def recovered(checkpoint: Checkpoint, scratch: Path, rows: int, seed: int) -> list[dict[str, Any]]:
    """Rows of schema `recovery_map`, by the steps of the workflow: the solver is a process of its
    own that is given the observations alone, never a weight.
    """
    from normgauge.exact_recovery.by_block import recover_by_block
    from normgauge.exact_recovery.closing import close_stragglers
    from normgauge.exact_recovery.compare import compare, with_stored_scores

    solution, closed = scratch / "solution", scratch / "closed"
    recover_by_block(checkpoint, solution, rows, seed)
    close_stragglers(checkpoint, solution, closed, rows, seed + 1)
    return with_stored_scores(compare(checkpoint, closed), checkpoint)


def _write(place: Path, scratch: Path, found: list[dict[str, Any]], record: dict[str, Any]) -> None:
    import shutil

    from normgauge.provenance import execution_environment
    from normgauge.schemas.exact_recovery import tables

    shutil.copyfile(scratch / "closed/recovered.safetensors", place / "recovered.safetensors")
    tables.write(
        place / "map.parquet",
        "recovery_map",
        found,
        {**execution_environment(), "model": record["model"]},
    )
