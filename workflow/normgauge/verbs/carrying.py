"""The gauge by which `carry` moves an artifact: read from a file, or found between two models."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from normgauge.anatomy import describe
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.matching_report import doubts, record
from normgauge.gauge.model_gauge import Gauge, read_gauge
from normgauge.gauge.model_matching import match_models
from normgauge.transport.folders import transform_folder
from normgauge.transport.origin import identity_of, read_origin
from normgauge.verbs.artifacts import Kind
from normgauge.verbs.probes import pair_probes

# of their norm: weights that are this far apart under a gauge of permutations are another model's
SAME = 1e-5


@dataclass(frozen=True)
class Way:
    """A gauge with the hashes of the weights at its two ends, and what is doubtful about it.
    `words`: where it comes from.
    """

    gauge: Gauge
    source_sha256: str
    target_sha256: str
    words: str
    margins: Mapping[str, float]
    doubts: tuple[str, ...] = ()

    @property
    def certain(self) -> bool:
        return not self.doubts


def given_way(path: str, source: Path, target: Path | None) -> Way:
    """The gauge of a file, which must name the model in `source` as the one that it moves.

    Without a target's folder or name, the hash of the target is that of the model moved, which is
    made and dropped. Raises InputError for another model's gauge.
    """
    gauge, origin, own = read_gauge(path), read_origin(path), identity_of(source)
    if origin is None or origin.source.sha256 != own.sha256:
        owner = (
            "names no model"
            if origin is None
            else f"moves {origin.source.architecture} {origin.source.sha256[:12]}"
        )
        raise InputError(
            f"{path}: {owner}, --from holds {own.architecture} {own.sha256[:12]}; use the gauge of "
            "this model"
        )
    if target is not None:
        reached = identity_of(target).sha256
    elif origin.target_sha256:
        reached = origin.target_sha256
    else:
        with tempfile.TemporaryDirectory() as scratch:
            transform_folder(source, Path(scratch) / "moved", gauge, leave_behind=True)
            reached = identity_of(Path(scratch) / "moved").sha256
    return Way(gauge, own.sha256, reached, f"by the gauge in {path}", {})


def matched_way(options: argparse.Namespace, source: Path, target: Path, kind: Kind) -> Way:
    """The gauge found between two folders: of all spaces, or of the residual streams alone for an
    optimizer's state, which signed permutations alone can move. Raises InputError where the models
    then differ by more than these.
    """
    pair = open_checkpoint(source), open_checkpoint(target)
    inputs = pair_probes(options, (source, target), pair)
    streams = (
        tuple(dict.fromkeys(stack.space for stack in describe(pair[0].config).stacks))
        if kind is Kind.OPTIMIZER
        else None
    )
    found = match_models(*pair, inputs.batches, streams)
    if kind is Kind.OPTIMIZER and found.change.after > SAME:
        raise InputError(
            f"{options.artifact}: an optimizer's state follows permutations and signs of the "
            "residual streams alone, and under these the "
            f"two models are {found.change.after:.2g} apart; restart the optimizer, or give the "
            "--gauge"
        )
    margins = record(found)["margins"]
    words = f"by the gauge found between the two models on {inputs.words}"
    return Way(
        found.gauge,
        identity_of(source).sha256,
        identity_of(target).sha256,
        words,
        margins,
        tuple(doubts(found)),
    )
