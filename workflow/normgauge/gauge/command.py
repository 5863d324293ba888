"""Gauges of checkpoint folders outside the workflow: `normgauge gauge random|apply|recover|check|audit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import islice

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint, open_config
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces, random_gauge
from normgauge.gauge.alignment import stream_shapes
from normgauge.gauge.audit import audit_rows
from normgauge.gauge.check import check
from normgauge.gauge.correlation import correlate_sites
from normgauge.gauge.equivalence import TOLERANCES
from normgauge.gauge.files import transform_folder
from normgauge.gauge.groups import Element
from normgauge.gauge.matching import match
from normgauge.gauge.model_gauge import Gauge, read_gauge, write_gauge
from normgauge.gauge.probes import require_same_tokens


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to `normgauge gauge`. Each parsed namespace has `run`, which takes it and returns the exit status."""
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str, *positional: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        for argument in positional:
            added.add_argument(argument)
        return added

    drawn = command("random", _random, "draw an admissible gauge of a checkpoint folder", "checkpoint", "gauge")
    drawn.add_argument("--seed", type=int, default=42)
    drawn.add_argument("--space", action="append", help="what to move; the residual streams unless given, repeatable")
    applied = command("apply", _apply, "write a gauged copy of a checkpoint folder", "checkpoint", "gauge", "destination")
    applied.add_argument("--inverse", action="store_true", help="apply the inverse")
    probed = [
        command("recover", _recover, "find the gauge that leads from one checkpoint to another", "source", "target", "gauge"),
        command("check", _check, "say whether two checkpoints are the same function", "source", "target"),
    ]
    probed[1].add_argument("--gauge", help="the gauge from source to target, for a class whose outputs are hidden states")
    audited = command("audit", _audit, "say which coordinate names survive a recorded gauge", "checkpoint")
    audited.add_argument("--seed", type=int, default=42)
    audited.add_argument("--top", type=int, default=20, help="coordinates that a claim names")
    for added in (*probed, audited):
        added.add_argument("--calibration", required=True, help="calibration.parquet with the probes")
        added.add_argument("--batches", type=int, default=2, help="batches of one sequence each")


def _random(options: argparse.Namespace) -> int:
    anatomy = describe(open_config(options.checkpoint))
    spaces = options.space or dict.fromkeys(stack.space for stack in anatomy.stacks)
    for space in spaces:
        if space not in gauge_spaces(anatomy):
            raise InputError(f"--space {space}: expected one of {', '.join(gauge_spaces(anatomy))}")
    write_gauge(options.gauge, random_gauge(anatomy, options.seed, tuple(spaces)), {"seed": str(options.seed)})
    return 0


def _apply(options: argparse.Namespace) -> int:
    gauge = read_gauge(options.gauge)
    transform_folder(options.checkpoint, options.destination, gauge.inverse() if options.inverse else gauge)
    return 0


def _probes(options: argparse.Namespace, folder: str, checkpoint: Checkpoint) -> list[Batch]:
    return list(islice(batches(options.calibration, folder=folder, config=checkpoint.config, batch_size=1), options.batches))


def _open_pair(options: argparse.Namespace) -> tuple[Checkpoint, Checkpoint, list[Batch]]:
    source, target = open_checkpoint(options.source), open_checkpoint(options.target)
    shapes = [(anatomy.architecture, stream_shapes(anatomy)) for anatomy in (describe(each.config) for each in (source, target))]
    if shapes[0] != shapes[1]:
        raise InputError(f"{options.target}: {shapes[1]}, {options.source} has {shapes[0]}; compare checkpoints of one class and shape")
    require_same_tokens(options.source, options.target)
    return source, target, _probes(options, options.source, source)


def _recover(options: argparse.Namespace) -> int:
    source, target, probes = _open_pair(options)
    anatomy = describe(source.config)
    elements: dict[str, Element] = {}
    first, second = (build_model(each, "float32") for each in (source, target))
    for stack in anatomy.stacks:
        sites = [site for site in anatomy.sites_in(("residual",)) if site.stack == stack.name]
        matches = {name: match(each) for name, each in correlate_sites(first, second, sites, probes).items()}
        clearest = min(matches, key=lambda name: (matches[name].uncertain.sum(), -matches[name].margins.min()))
        found = matches[clearest]
        elements[stack.space] = found.gauge
        proof = "certified" if found.certified else "not certified"
        print(
            f"{stack.space}: {found.method}, {proof}, smallest margin {found.margins.min():.3g}, {int(found.uncertain.sum())} of "
            f"{found.gauge.size} coordinates uncertain ({found.samples} tokens at {clearest})"
        )
    write_gauge(options.gauge, Gauge(elements), {"source": "recovered"})
    return 0


def _check(options: argparse.Namespace) -> int:
    source, target, probes = _open_pair(options)
    first, second = (build_model(each, "float64") for each in (source, target))
    gauge = read_gauge(options.gauge) if options.gauge else Gauge({})
    found = check(first, second, describe(source.config), probes, gauge)
    same = found.outputs.unchanged("float64")
    where = found.first_difference(TOLERANCES["float64"])
    print(f"{'the same function' if same else 'not the same function'}: outputs differ by {found.outputs.relative:.3g} in float64")
    if not same:
        beyond = "the residual streams agree: the difference lies behind them, or hidden states are outputs and need the --gauge between"
        print(f"first difference at {where}" if where else beyond)
    return 0 if same else 1


def _audit(options: argparse.Namespace) -> int:
    checkpoint = open_checkpoint(options.checkpoint)
    probes = _probes(options, options.checkpoint, checkpoint)
    rows = audit_rows(checkpoint, describe(checkpoint.config), probes, (options.seed,), options.top)
    print(f"outputs move by {rows[0]['relative_deviation']:.2g} under the recorded gauge {options.seed} (float32)")
    for row in rows:
        print(
            f"{row['claim']} ({row['site']}): of {row['top']} names {row['raw_overlap']:.0%} stay (chance {row['chance']:.0%}), "
            f"{row['mapped_overlap']:.0%} agree after the gauge"
        )
    return 0
