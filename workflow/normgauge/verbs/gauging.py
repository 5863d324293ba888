"""What the gauge commands do: each takes the parsed options and returns what it says, in lines and
in one document, with its exit status.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches
from normgauge.calibration.direct import drawn_inputs, probe_settings
from normgauge.calibration.interfaces import maximum_length, vocabulary_size
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.check import Verdict, check
from normgauge.gauge.check_report import said, said_of_stored
from normgauge.gauge.matching_report import record, report
from normgauge.gauge.model_gauge import Gauge, read_gauge, write_gauge
from normgauge.gauge.model_matching import match_models
from normgauge.gauge.probes import require_same_tokens
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.requirements import require_fitting
from normgauge.gauge.rounding import SINGLE_ROUNDING
from normgauge.gauge.stored import condition, stored_errors
from normgauge.signed_permutation.name_audit import audit_rows
from normgauge.signed_permutation.natural_alignment import stream_shapes
from normgauge.transport.converted import as_safetensors
from normgauge.transport.folders import folder_anatomy, transform_folder
from normgauge.transport.origin import Identity, Origin, brought_back_ulp, identity_of, read_origin
from normgauge.transport.outputs import NO_PART, require_new
from normgauge.verbs.places import model_folder

TOKENS = ("input_ids", "decoder_input_ids")

STORED = 2  # sequences of a given calibration


@dataclass(frozen=True)
class Said:
    """What a command says: an exit status, lines for people, a document for machines."""

    status: int
    lines: list[str]
    document: dict[str, Any]


def draw(options: argparse.Namespace) -> Said:
    require_new(options.gauge)
    with model_folder(options.checkpoint, options.config) as folder:
        require_new(options.gauge, folder)
        anatomy = folder_anatomy(folder)
        spaces = options.space or dict.fromkeys(stack.space for stack in anatomy.stacks)
        for space in spaces:
            if space not in gauge_spaces(anatomy):
                raise InputError(
                    f"--space {space}: expected one of {', '.join(gauge_spaces(anatomy))}"
                )
        origin = Origin(identity_of(folder))
    write_gauge(
        options.gauge,
        random_gauge(anatomy, options.seed, tuple(spaces)),
        {"seed": str(options.seed), **origin.metadata()},
    )
    document = {"gauge": options.gauge, "seed": options.seed, "spaces": list(spaces)}
    line = (
        f"{options.gauge}: a gauge of {anatomy.architecture} that moves {', '.join(spaces)} "
        f"(seed {options.seed}); `normgauge gauge apply` writes the model in these coordinates"
    )
    return Said(0, [line], {**document, "architecture": anatomy.architecture})


def apply(options: argparse.Namespace) -> Said:
    require_new(options.destination)
    gauge, origin = read_gauge(options.gauge), read_origin(options.gauge)
    with (
        model_folder(options.checkpoint, options.config) as opened,
        as_safetensors(opened, options.checkpoint, options.leave_behind) as folder,
    ):
        require_new(options.destination, opened)
        require_fitting(folder_anatomy(folder), gauge)
        lines: list[str] = []
        report = None
        if options.inverse:
            report = partial(_brought_back, options, folder, origin, gauge, lines)
        else:
            lines += _require_named(options, origin, folder)
        moving = gauge.inverse() if options.inverse else gauge
        done = transform_folder(folder, options.destination, moving, report, options.leave_behind)
        out = [name for name in NO_PART if (folder / name).is_dir()]
    if not options.inverse:
        count = len(done.rounded)
        lines.append(
            f"{options.destination}: {count} tensors were rounded, once; --inverse brings them "
            "back up to rounding"
            if count
            else f"{options.destination}: nothing was rounded; --inverse brings back every byte"
        )
    left = [*done.words(), *([f"not copied: {', '.join(out)}"] if out else [])]
    document = {
        "folder": options.destination,
        "inverse": options.inverse,
        "rounded_tensors": len(done.rounded),
        "moved": done.moved,
        "left_behind": done.left,
        "not_copied": out,
        "said": lines,
    }
    return Said(0, [*lines, *(f"{options.destination}: {line}" for line in left)], document)


def _require_named(options: argparse.Namespace, origin: Origin | None, folder: Path) -> list[str]:
    """InputError where the gauge's file does not name the model in the folder as the one that it
    moves; a line under --force.
    """
    found = identity_of(folder)
    if origin and (origin.source.architecture, origin.source.sha256) == (
        found.architecture,
        found.sha256,
    ):
        return []
    named = getattr(options, "checkpoint", None) or options.source
    return [_override(options, origin, f"{named}: holds {_named(found)}")]


def _named(identity: Identity) -> str:
    return f"{identity.architecture} {identity.sha256[:12]}"


def _override(options: argparse.Namespace, origin: Origin | None, fault: str) -> str:
    owner = f"moves {_named(origin.source)}" if origin else "names no model"
    if not options.force:
        raise InputError(
            f"{fault}, {options.gauge} {owner}; use the gauge of this model (--force takes this "
            "one)"
        )
    return f"overridden: {fault}, {options.gauge} {owner}"


def _brought_back(
    options: argparse.Namespace,
    checkpoint: Path,
    origin: Origin | None,
    gauge: Gauge,
    lines: list[str],
    folder: Path,
    rounded: tuple[str, ...],
) -> None:
    """Say, in `lines`, how far the model in `folder`, about to become the destination, is from the
    one that the gauge moves; InputError where it is another one, and the checkpoint is not the one
    that the gauge was recovered from either.
    """
    found = identity_of(folder)
    if origin and found.sha256 == origin.source.sha256:
        lines.append(f"{options.destination}: the weights that the gauge moves, every byte")
        return
    error = brought_back_ulp(folder, found, origin, rounded) if origin else float("inf")
    if error <= condition(gauge) + 1:
        lines.append(
            f"{options.destination}: the weights that the gauge moves up to rounding: off by "
            f"{error:.2f} ulp, in root mean square "
            f"over {len(rounded)} rounded tensors (one rounding: {SINGLE_ROUNDING:.2f})"
        )
    elif origin and origin.target_sha256 == identity_of(checkpoint).sha256:
        lines.append(
            f"{options.destination}: the model that the gauge was recovered from, in the source's "
            "coordinates"
        )
    else:
        back = f"{options.checkpoint}: comes back as {_named(found)}"
        lines.append(_override(options, origin, back))


def _probes(options: argparse.Namespace, folder: Path, *checkpoints: Checkpoint) -> list[Batch]:
    """The first batches of the calibration, or drawn ones that all checkpoints take. Raises
    InputError where one of them has no such token, or not so many positions.
    """
    if options.calibration is None:
        config = min((each.config for each in checkpoints), key=vocabulary_size)
        settings = probe_settings(config, options.batches)
        return list(drawn_inputs(config, settings, folder, batch_size=1).batches)
    count = STORED if options.batches is None else options.batches
    found = list(
        islice(
            batches(options.calibration, folder=folder, config=checkpoints[0].config, batch_size=1),
            count,
        )
    )
    grids = [batch.inputs[name] for batch in found for name in TOKENS if name in batch.inputs]
    for config, ids in product(
        (each.config for each in checkpoints), (ids for ids in grids if ids.ndim == 2)
    ):
        tokens, positions = vocabulary_size(config), maximum_length(config) or ids.shape[1]
        if int(ids.max()) >= tokens or ids.shape[1] > positions:
            raise InputError(
                f"{options.calibration}: holds token {int(ids.max())} in sequences of "
                f"{ids.shape[1]}, the model has {tokens} tokens and "
                f"{positions} positions; prepare probes for this model"
            )
    return found


@contextmanager
def _open_pair(
    options: argparse.Namespace,
) -> Iterator[tuple[tuple[Path, Path], tuple[Checkpoint, Checkpoint], list[Batch]]]:
    """The folders of source and target, what they hold, and the probes of both."""
    with (
        model_folder(options.source, options.config) as first,
        model_folder(options.target, options.config) as second,
    ):
        source, target = open_checkpoint(first), open_checkpoint(second)
        shapes = [
            (anatomy.architecture, stream_shapes(anatomy))
            for anatomy in (describe(each.config) for each in (source, target))
        ]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{options.target}: {shapes[1]}, {options.source} has {shapes[0]}; compare "
                "checkpoints of one class and shape"
            )
        require_same_tokens(first, second)
        yield (first, second), (source, target), _probes(options, first, source, target)


def recover(options: argparse.Namespace) -> Said:
    require_new(options.gauge)
    with _open_pair(options) as (folders, (source, target), probes):
        require_new(options.gauge, *folders)
        matching = match_models(source, target, probes)
        origin = Origin(identity_of(folders[0]), identity_of(folders[1]).sha256)
    found = record(matching)
    words = {name: json.dumps(value) for name, value in found.items()}
    require_new(options.gauge)  # matching takes its time
    write_gauge(
        options.gauge, matching.gauge, {**origin.metadata(), "source": "recovered", **words}
    )
    document = {
        "gauge": options.gauge,
        "certain": matching.certain,
        "weights_apart": asdict(matching.change),
        **found,
    }
    return Said(int(not matching.certain), list(report(matching)), document)


def check_pair(options: argparse.Namespace) -> Said:
    lines: list[str] = []
    with _open_pair(options) as (folders, (source, target), probes):
        gauge = read_gauge(options.gauge) if options.gauge else Gauge({})
        require_fitting(describe(source.config), gauge)
        if options.gauge:
            lines += _require_named(options, read_origin(options.gauge), folders[0])
        found = check(source, target, probes, gauge)
        document = {
            "verdict": str(found.verdict),
            "outputs_apart": found.found.outputs,
            "explained_by_arithmetic": found.arithmetic.outputs,
            "explained_by_rounding": found.rounding.outputs,
            "first_difference": found.first_difference(),
            "changed": dict(found.changed),
        }
        different = int(found.verdict == Verdict.DIFFERENT)
        if not options.gauge:
            return Said(different, [*lines, *said(found)], document)
        try:
            errors = stored_errors(source, target, gauge)
        # a rotation of a model whose gains are not absorbed: only its folded copy has such values
        except InputError as error:
            unknown = f"stored values are not compared: {error}"
            return Said(different, [*lines, *said(found), unknown], {**document, "stored": None})
    beyond = {error.tensor: error.largest for error in errors if error.beyond}
    largest = max(error.largest for error in errors)
    document["stored"] = {"largest_error_in_ulp": largest, "beyond_rounding": beyond}
    return Said(
        int(bool(beyond)), [*lines, *said_of_stored(errors, found.verdict), *said(found)], document
    )


def audit(options: argparse.Namespace) -> Said:
    with model_folder(options.checkpoint, options.config) as folder:
        checkpoint = open_checkpoint(folder)
        anatomy = describe(checkpoint.config)
        probes = _probes(options, folder, checkpoint)
        rows = audit_rows(checkpoint, anatomy, probes, (options.seed,), options.top)
    lines = [
        f"outputs move by {rows[0]['relative_deviation']:.2g} under the recorded gauge "
        f"{options.seed} (float32)"
    ]
    lines += [
        f"{row['claim']} ({row['site']}): of {row['top']} names {row['raw_overlap']:.0%} stay "
        f"(chance {row['chance']:.0%}), {row['mapped_overlap']:.0%} agree after the gauge"
        for row in rows
    ]
    return Said(0, lines, {"architecture": anatomy.architecture, "audit": rows})
