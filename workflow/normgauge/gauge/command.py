"""Gauges of checkpoint folders outside the workflow: `normgauge gauge random|apply|recover|check|audit`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import islice, product
from pathlib import Path

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches
from normgauge.calibration.interfaces import maximum_length, vocabulary_size
from normgauge.checkpoints.configuration import open_config
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces, random_gauge, require_fitting
from normgauge.gauge.alignment import stream_shapes
from normgauge.gauge.audit import audit_rows
from normgauge.gauge.check import Verdict, check
from normgauge.gauge.check_report import said, said_of_stored
from normgauge.gauge.files import require_absent, transform_folder
from normgauge.gauge.matching_report import record, report
from normgauge.gauge.model_gauge import Gauge, read_gauge, write_gauge
from normgauge.gauge.model_matching import match_models
from normgauge.gauge.origin import Identity, Origin, brought_back_ulp, identity_of, read_origin
from normgauge.gauge.probes import require_same_tokens
from normgauge.gauge.rounding import SINGLE_ROUNDING
from normgauge.gauge.stored import condition, stored_errors

TOKENS = ("input_ids", "decoder_input_ids")


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
    drawn.add_argument("--seed", type=count, default=42)
    drawn.add_argument("--space", action="append", help="what to move; the residual streams unless given, repeatable")
    applied = command("apply", _apply, "write a gauged copy of a checkpoint folder", "checkpoint", "gauge", "destination")
    applied.add_argument("--inverse", action="store_true", help="apply the inverse; what comes back is said, in ulp where it was rounded")
    probed = [
        command("recover", _recover, "find the gauge of all spaces that leads from one checkpoint to another", "source", "target", "gauge"),
        command("check", _check, "say whether two checkpoints are the same function", "source", "target"),
    ]
    probed[1].add_argument("--gauge", help="the gauge from source to target: every stored value is compared with its own")
    probed[
        1
    ].epilog = "Exit status: 0 for the same function, also up to the rounding of its stored weights; 1 for another one or bad input."
    for added in (applied, probed[1]):
        added.add_argument("--force", action="store_true", help="take a gauge that names another model, or none; says what it overrides")
    audited = command("audit", _audit, "say which coordinate names survive a recorded gauge", "checkpoint")
    audited.add_argument("--seed", type=count, default=42)
    audited.add_argument("--top", type=count, default=20, help="coordinates that a claim names")
    for added in (*probed, audited):
        added.add_argument("--calibration", required=True, help="calibration.parquet with the probes")
        added.add_argument("--batches", type=count, default=2, help="batches of one sequence each")


def count(text: str) -> int:
    """The type of an argument that is no negative number; argparse turns the ValueError into its own line."""
    if (value := int(text)) < 0:
        raise ValueError
    return value


def _random(options: argparse.Namespace) -> int:
    anatomy = describe(open_config(options.checkpoint))
    spaces = options.space or dict.fromkeys(stack.space for stack in anatomy.stacks)
    for space in spaces:
        if space not in gauge_spaces(anatomy):
            raise InputError(f"--space {space}: expected one of {', '.join(gauge_spaces(anatomy))}")
    origin = Origin(identity_of(options.checkpoint))
    write_gauge(options.gauge, random_gauge(anatomy, options.seed, tuple(spaces)), {"seed": str(options.seed), **origin.metadata()})
    return 0


def _apply(options: argparse.Namespace) -> int:
    gauge, origin = read_gauge(options.gauge), read_origin(options.gauge)
    require_absent(options.destination)
    require_fitting(describe(open_config(options.checkpoint)), gauge)
    if options.inverse:
        report = partial(_brought_back, options, origin, gauge)
        transform_folder(options.checkpoint, options.destination, gauge.inverse(), report)
        return 0
    _require_named(options, origin, options.checkpoint)
    rounded = transform_folder(options.checkpoint, options.destination, gauge)
    exact = f"{options.destination}: nothing was rounded; --inverse brings back every byte"
    print(
        f"{options.destination}: {len(rounded)} tensors were rounded, once; --inverse brings them back up to rounding" if rounded else exact
    )
    return 0


def _require_named(options: argparse.Namespace, origin: Origin | None, folder: str) -> None:
    """InputError where the gauge's file does not name the model in the folder as the one that it moves; a line under --force."""
    found = identity_of(folder)
    if origin and (origin.source.architecture, origin.source.sha256) == (found.architecture, found.sha256):
        return
    _override(options, origin, f"{folder}: holds {_named(found)}")


def _named(identity: Identity) -> str:
    return f"{identity.architecture} {identity.sha256[:12]}"


def _override(options: argparse.Namespace, origin: Origin | None, fault: str) -> None:
    owner = f"moves {_named(origin.source)}" if origin else "names no model"
    if not options.force:
        raise InputError(f"{fault}, {options.gauge} {owner}; use the gauge of this model (--force takes this one)")
    print(f"overridden: {fault}, {options.gauge} {owner}")


def _brought_back(options: argparse.Namespace, origin: Origin | None, gauge: Gauge, folder: Path, rounded: tuple[str, ...]) -> None:
    """Say how far the model in `folder`, about to become the destination, is from the one that the gauge moves; InputError where it is
    another one, and the checkpoint is not the one that the gauge was recovered from either."""
    found = identity_of(folder)
    if origin and found.sha256 == origin.source.sha256:
        print(f"{options.destination}: the weights that the gauge moves, every byte")
        return
    error = brought_back_ulp(folder, found, origin, rounded) if origin else float("inf")
    if error <= condition(gauge) + 1:
        print(
            f"{options.destination}: the weights that the gauge moves up to rounding: off by {error:.2f} ulp, in root mean square "
            f"over {len(rounded)} rounded tensors (one rounding: {SINGLE_ROUNDING:.2f})"
        )
    elif origin and origin.target_sha256 == identity_of(options.checkpoint).sha256:
        print(f"{options.destination}: the model that the gauge was recovered from, in the source's coordinates")
    else:
        _override(options, origin, f"{options.checkpoint}: comes back as {_named(found)}")


def _probes(options: argparse.Namespace, folder: str, *checkpoints: Checkpoint) -> list[Batch]:
    """The first batches of the calibration. Raises InputError where one of the checkpoints has no such token, or not so many positions."""
    found = list(islice(batches(options.calibration, folder=folder, config=checkpoints[0].config, batch_size=1), options.batches))
    grids = [batch.inputs[name] for batch in found for name in TOKENS if name in batch.inputs]
    for config, ids in product((each.config for each in checkpoints), (ids for ids in grids if ids.ndim == 2)):
        tokens, positions = vocabulary_size(config), maximum_length(config) or ids.shape[1]
        if int(ids.max()) >= tokens or ids.shape[1] > positions:
            raise InputError(
                f"{options.calibration}: holds token {int(ids.max())} in sequences of {ids.shape[1]}, the model has {tokens} tokens and "
                f"{positions} positions; prepare probes for this model"
            )
    return found


def _open_pair(options: argparse.Namespace) -> tuple[Checkpoint, Checkpoint, list[Batch]]:
    source, target = open_checkpoint(options.source), open_checkpoint(options.target)
    shapes = [(anatomy.architecture, stream_shapes(anatomy)) for anatomy in (describe(each.config) for each in (source, target))]
    if shapes[0] != shapes[1]:
        raise InputError(f"{options.target}: {shapes[1]}, {options.source} has {shapes[0]}; compare checkpoints of one class and shape")
    require_same_tokens(options.source, options.target)
    return source, target, _probes(options, options.source, source, target)


def _recover(options: argparse.Namespace) -> int:
    source, target, probes = _open_pair(options)
    matching = match_models(source, target, probes)
    origin = Origin(identity_of(options.source), identity_of(options.target).sha256)
    found = {name: json.dumps(value) for name, value in record(matching).items()}
    write_gauge(options.gauge, matching.gauge, {**origin.metadata(), "source": "recovered", **found})
    for line in report(matching):
        print(line)
    return 0 if matching.certain else 1


def _check(options: argparse.Namespace) -> int:
    source, target, probes = _open_pair(options)
    gauge = read_gauge(options.gauge) if options.gauge else Gauge({})
    require_fitting(describe(source.config), gauge)
    if options.gauge:
        _require_named(options, read_origin(options.gauge), options.source)
    found = check(source, target, probes, gauge)
    if not options.gauge:
        print("\n".join(said(found)))
        return int(found.verdict == Verdict.DIFFERENT)
    try:
        errors = stored_errors(source, target, gauge)
    except InputError as error:  # a rotation of a model whose gains are not absorbed: only its folded copy has such values
        print("\n".join([*said(found), f"stored values are not compared: {error}"]))
        return int(found.verdict == Verdict.DIFFERENT)
    print("\n".join([*said_of_stored(errors, found.verdict), *said(found)]))
    return int(any(error.beyond for error in errors))


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
