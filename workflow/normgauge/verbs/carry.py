"""`normgauge carry ARTIFACT OUT`: a LoRA, a dictionary, vectors or an optimizer's state, moved to
another model's coordinates.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from normgauge.verbs.arguments import MODEL, add_output, add_settings, add_tokens

HELP = (
    "move a LoRA, an SAE, vectors or an optimizer's state to the coordinates of an equivalent model"
)
EPILOG = (
    "With --gauge the model that the gauge moves is named by --from. Without it the gauge is found "
    "between --from and --to, and "
    "the status is 1 where not all of it is certain."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "artifact",
        metavar="ARTIFACT",
        help="a PEFT or SAELens folder, or a .safetensors, .npz, .gguf or torch file",
    )
    parser.add_argument(
        "output", metavar="OUT", help="a new folder or file; an artifact keeps its format"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="A",
        required=True,
        help=f"the model that the artifact belongs to: {MODEL}",
    )
    parser.add_argument("--to", dest="target", metavar="B", help="the model that it is carried to")
    parser.add_argument(
        "--gauge", help="the gauge from A to B, as `normgauge gauge random` and `recover` write it"
    )
    parser.add_argument(
        "--space",
        help="what vectors and dictionaries live in; a dictionary's hook, or the last residual "
        "stream unless given",
    )
    add_tokens(parser)
    add_settings(parser)
    add_output(parser, folder=False)


def run(options: argparse.Namespace) -> int:
    from contextlib import ExitStack

    from normgauge.anatomy import describe
    from normgauge.checkpoints.configuration import open_config
    from normgauge.errors import InputError
    from normgauge.transport.sidecar import Sidecar
    from normgauge.verbs.artifacts import kind_of, move
    from normgauge.verbs.carrying import Way, given_way, matched_way
    from normgauge.verbs.output import say, say_json
    from normgauge.verbs.places import model_folder, require_place
    from normgauge.verbs.words.moving import carry_summary

    if not options.gauge and not options.target:
        raise InputError(
            "carry: how A and B differ is not known; give --gauge, or --to with the model to carry "
            "to"
        )
    artifact = Path(options.artifact)
    kind = kind_of(artifact)
    with ExitStack() as stack:
        source = stack.enter_context(model_folder(options.source, options.config))
        target = (
            stack.enter_context(model_folder(options.target, options.config))
            if options.target
            else None
        )
        require_place(options.output, *(path for path in (source, artifact) if path.is_dir()))
        way: Way
        if options.gauge:
            way = given_way(options.gauge, source, target)
        else:
            assert target is not None
            way = matched_way(options, source, target, kind)
        anatomy = describe(open_config(source))
    sidecar = Sidecar.of(way.gauge, way.target_sha256, way.source_sha256, margins=way.margins)
    move(kind, artifact, Path(options.output), anatomy, way.gauge, options.space, sidecar)
    if options.json:
        say_json(
            {
                "artifact": kind,
                "output": options.output,
                "certain": way.certain,
                "doubts": way.doubts,
            }
        )
    else:
        say(carry_summary(kind, options.output, way.doubts, way.words))
    return 0 if way.certain else 1
