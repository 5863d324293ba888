"""Gauges outside the workflow: `normgauge gauge random|apply|recover|check|audit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from normgauge.calibration.direct import PROBES
from normgauge.verbs.arguments import MODEL, add_output, add_settings, count
from normgauge.verbs.gauging import STORED, Said, apply, audit, check_pair, draw, recover
from normgauge.verbs.output import say, say_json

POSITIONAL = {
    "checkpoint": MODEL,
    "source": MODEL,
    "target": f"the other one: {MODEL}",
    "gauge": "a gauge that `random` or `recover` wrote, such as g.parquet",
    "destination": "a new folder for the copy",
}
WRITTEN = {(verb, "gauge"): "a new file, such as g.parquet" for verb in ("random", "recover")}


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to `normgauge gauge`. Each parsed namespace has `run`, which takes it and
    returns the exit status.
    """
    commands = parser.add_subparsers(required=True, metavar="random|apply|recover|check|audit")

    def command(
        name: str, run: Callable[[argparse.Namespace], Said], text: str, *positional: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=partial(_printed, run), parser=added)
        for argument in positional:
            meaning = WRITTEN.get((name, argument), POSITIONAL[argument])
            added.add_argument(argument, metavar=argument.upper(), help=meaning)
        add_settings(added)
        add_output(added, folder=False)
        return added

    drawn = command(
        "random", draw, "draw an admissible gauge of a checkpoint folder", "checkpoint", "gauge"
    )
    drawn.add_argument("--seed", type=count, default=42, help="of what is drawn (42)")
    drawn.add_argument(
        "--space",
        action="append",
        help="what to move; the residual streams unless given, repeatable",
    )
    applied = command(
        "apply",
        apply,
        "write a gauged copy of a checkpoint folder",
        "checkpoint",
        "gauge",
        "destination",
    )
    applied.add_argument(
        "--inverse",
        action="store_true",
        help="apply the inverse; what comes back is said, in ulp where it was rounded",
    )
    applied.add_argument(
        "--leave-behind",
        action="store_true",
        help="make the copy without files that would stay in old coordinates",
    )
    probed = [
        command(
            "recover",
            recover,
            "find the gauge of all spaces that leads from one checkpoint to another",
            "source",
            "target",
            "gauge",
        ),
        command(
            "check",
            check_pair,
            "say whether two checkpoints are the same function",
            "source",
            "target",
        ),
    ]
    probed[1].add_argument(
        "--gauge",
        help="the gauge from source to target: every stored value is compared with its own",
    )
    probed[1].epilog = (
        "Exit status: 0 for the same function, also up to the rounding of its stored "
        "weights; 1 for another one or bad input."
    )
    for added in (applied, probed[1]):
        added.add_argument(
            "--force",
            action="store_true",
            help="take a gauge that names another model, or none; says what it overrides",
        )
    audited = command(
        "audit", audit, "say which coordinate names survive a recorded gauge", "checkpoint"
    )
    audited.add_argument("--seed", type=count, default=42, help="of the gauge (42)")
    audited.add_argument(
        "--top", type=count, default=20, help="how many coordinates a claim names (20)"
    )
    for added in (*probed, audited):
        added.add_argument(
            "--calibration",
            help="calibration.parquet with the probes; random tokens are drawn unless given",
        )
        added.add_argument(
            "--batches",
            type=count,
            help=f"batches of one sequence each: {STORED} of a calibration, else {PROBES} are "
            "drawn",
        )


def _printed(run: Callable[[argparse.Namespace], Said], options: argparse.Namespace) -> int:
    said = run(options)
    if options.json:
        say_json(said.document)
    elif said.lines:
        say(said.lines)
    return said.status
