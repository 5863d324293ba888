"""Gauges outside the workflow: `normgauge gauge random|apply|recover|check|audit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

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
ARGUMENTS = {
    "random": ("checkpoint", "gauge"),
    "apply": ("checkpoint", "gauge", "destination"),
    "recover": ("source", "target", "gauge"),
    "check": ("source", "target"),
    "audit": ("checkpoint",),
}
WRITTEN = {(verb, "gauge"): "a new file, such as g.parquet" for verb in ("random", "recover")}


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to `normgauge gauge`. Each parsed namespace has `run`, which takes it and
    returns the exit status.
    """
    commands = parser.add_subparsers(required=True, metavar="random|apply|recover|check|audit")
    drawn = _command(commands, "random", draw, "draw an admissible gauge of a checkpoint folder")
    applied = _command(commands, "apply", apply, "write a gauged copy of a checkpoint folder")
    recovered = _command(
        commands,
        "recover",
        recover,
        "find the gauge of all spaces that leads from one checkpoint to another",
    )
    checked = _command(
        commands, "check", check_pair, "say whether two checkpoints are the same function"
    )
    audited = _command(
        commands, "audit", audit, "say which coordinate names survive a recorded gauge"
    )
    _add_draws(drawn, audited)
    _add_application(applied, checked)
    _add_probes(recovered, checked, audited)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Said], text: str
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    added.set_defaults(run=partial(_printed, run), parser=added)
    for argument in ARGUMENTS[name]:
        meaning = WRITTEN.get((name, argument), POSITIONAL[argument])
        added.add_argument(argument, metavar=argument.upper(), help=meaning)
    add_settings(added)
    add_output(added, folder=False)
    return added


def _add_draws(drawn: argparse.ArgumentParser, audited: argparse.ArgumentParser) -> None:
    drawn.add_argument("--seed", type=count, default=42, help="of what is drawn (42)")
    drawn.add_argument(
        "--space",
        action="append",
        help="what to move; the residual streams unless given, repeatable",
    )
    audited.add_argument("--seed", type=count, default=42, help="of the gauge (42)")
    audited.add_argument(
        "--top", type=count, default=20, help="how many coordinates a claim names (20)"
    )


def _add_application(applied: argparse.ArgumentParser, checked: argparse.ArgumentParser) -> None:
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
    checked.add_argument(
        "--gauge",
        help="the gauge from source to target: every stored value is compared with its own",
    )
    checked.epilog = (
        "Exit status: 0 for the same function, also up to the rounding of its stored "
        "weights; 1 for another one or bad input."
    )
    for added in (applied, checked):
        added.add_argument(
            "--force",
            action="store_true",
            help="take a gauge that names another model, or none; says what it overrides",
        )


def _add_probes(*probed: argparse.ArgumentParser) -> None:
    for added in probed:
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
