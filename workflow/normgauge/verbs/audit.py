"""`normgauge audit MODEL`: which names of coordinates survive a change of basis that the model does
not notice.
"""

from __future__ import annotations

import argparse

from normgauge.verbs.arguments import MODEL, add_output, add_settings, add_tokens, positive

HELP = (
    "which coordinate names mean anything: they are read again after a change of coordinates "
    "that keeps the function"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument(
        "--top", type=positive, default=20, help="coordinates that a claim names (20)"
    )
    add_tokens(parser)
    add_settings(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from normgauge.anatomy import describe
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.provenance import execution_environment
    from normgauge.render import style
    from normgauge.render.signed_permutation.audit_page import names_page
    from normgauge.schemas.signed_permutation import tables
    from normgauge.signed_permutation.name_audit import audit_rows
    from normgauge.transport.origin import identity_of
    from normgauge.verbs.output import say, say_json, written
    from normgauge.verbs.places import check_output, model_folder, output_folder
    from normgauge.verbs.probes import probes
    from normgauge.verbs.words.moving import audit_summary

    with model_folder(options.model, options.config) as folder:
        checkpoint = open_checkpoint(folder)
        named = {
            name: getattr(options, name)
            for name in ("model", "top", "tokens", "sequences", "length", "seed", "config")
        }
        record = {
            "verb": "audit",
            "weights": identity_of(folder).sha256 if options.out else None,
            **named,
        }
        check_output(options.out, record, folder)
        inputs = probes(options, folder, checkpoint)
        anatomy = describe(checkpoint.config)
        rows = audit_rows(checkpoint, anatomy, inputs.batches, (options.seed,), options.top)
    if options.out:
        metadata = {
            **execution_environment(),
            "model": options.model,
            "weights": str(record["weights"]),
            "inputs": inputs.words,
        }
        with output_folder(options.out, record) as place:
            tables.write(place / "audit.parquet", "gauge_audit", rows, metadata)
            drawn = names_page(options.model, anatomy.architecture, rows)
            style.save(drawn, [place / "audit.pdf"])
    if options.json:
        say_json({"architecture": anatomy.architecture, "inputs": inputs.words, "audit": rows})
    else:
        say([*audit_summary(anatomy, rows, inputs.words), *written(options.out)])
    return 0
