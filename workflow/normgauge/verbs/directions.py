"""`normgauge directions MODEL OUT.safetensors`: the dead directions of each norm's output, to leave
out of a LoRA or an SAE.
"""

from __future__ import annotations

import argparse

from normgauge.verbs.arguments import MODEL, add_output, add_settings

HELP = "dead directions of each norm's output as a safetensors file, for LoRA and SAE exclusion"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument(
        "output",
        metavar="OUT.safetensors",
        help="a new file: of each norm its kernel, float64 (k, d), its kind and the constant",
    )
    add_settings(parser)
    add_output(parser, folder=False)


def run(options: argparse.Namespace) -> int:
    from pathlib import Path

    from normgauge import __version__
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.errors import InputError
    from normgauge.fingerprint.directions import write_directions
    from normgauge.live.directions import directions_by_norm
    from normgauge.live.models import describe
    from normgauge.transport.origin import identity_of
    from normgauge.transport.outputs import new_output
    from normgauge.verbs.output import say, say_json
    from normgauge.verbs.places import model_folder, require_place
    from normgauge.verbs.words.measuring import directions_summary

    if Path(options.output).suffix != ".safetensors":
        raise InputError(f"{options.output}: expected a name that ends in .safetensors")
    with model_folder(options.model, options.config) as folder:
        require_place(options.output, folder)
        checkpoint = open_checkpoint(folder)
        norms, anatomy = directions_by_norm(checkpoint), describe(checkpoint)
        weights = identity_of(folder).sha256
    found = {name: norm.kernel for name, norm in norms.items() if len(norm.kernel)}
    if found:
        metadata = {
            "normgauge": __version__,
            "architecture": anatomy.architecture,
            "weights": weights,
        }
        with new_output(options.output) as temporary:
            write_directions(temporary, norms, metadata)
    if options.json:
        shapes = {name: list(value.shape) for name, value in found.items()}
        say_json(
            {
                "architecture": anatomy.architecture,
                "weights": weights,
                "directions": shapes,
                "file": options.output if found else None,
            }
        )
    else:
        say(directions_summary(anatomy, found, options.output))
    return 0
