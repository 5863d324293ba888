"""The study's measurements of merging and of resumed training, files in and files out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from normgauge.calibration.batches import Batch, batches
from normgauge.calibration.direct import prepared_inputs, probe_settings
from normgauge.calibration.tokenisation import load_tokenizer
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.probes import require_same_tokens, shortened
from normgauge.provenance import execution_environment
from normgauge.schemas.trajectories import tables
from normgauge.training.plan import plan_of
from normgauge.training.texts import consecutive, corpus_texts, split, spread
from normgauge.trajectories.averaging import Recorded, average_rows
from normgauge.trajectories.merging import merge_rows, pair_of
from normgauge.trajectories.resuming import resumed_rows
from normgauge.trajectories.runs import CHARACTERS

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Named:
    """A checkpoint by its name, `model@revision`: its folder, and keys laid over its config."""

    name: str
    folder: PathLike
    overrides: Mapping[str, Any] | None = None

    def opened(self) -> Checkpoint:
        return open_checkpoint(self.folder, self.overrides)


def measure_merging(
    pairs: Sequence[tuple[Named, Named, PathLike, Mapping[str, Any]]],
    output: Mapping[str, PathLike],
    sizes: Mapping[str, int],
) -> None:
    """Write merge_barriers, parquet and csv; pairs as two checkpoints, the calibration of the first
    and the pair's settings.

    Of the calibration the first `probes` sequences are matched by, and the `sequences` after them
    are what the loss is taken on, each cut to `length`. Settings may have `seeds` of recorded
    gauges, else the two were trained apart; and sizes of their own. InputError for a calibration
    with fewer sequences.
    """
    rows: list[dict[str, Any]] = []
    for first, second, calibration, settings in pairs:
        require_same_tokens(first.folder, second.folder)
        one = first.opened()
        other = one if second.name == first.name else second.opened()
        own = {key: settings.get(key, size) for key, size in sizes.items()}
        probes, sequences = _tokens(calibration, first.folder, one, own)
        seeds: Sequence[int | None] = settings.get("seeds", [None])
        for stream_alone in (True,) if "seeds" in settings else (True, False):
            pair = pair_of(one, other, stream_alone)
            for seed in seeds:
                for row in merge_rows(pair, probes, sequences, seed):
                    rows.append({"first": first.name, "second": second.name, **row})
    _write(output, "merge_barriers", rows)


def _tokens(
    calibration: PathLike, folder: PathLike, checkpoint: Checkpoint, sizes: Mapping[str, int]
) -> tuple[list[Batch], torch.Tensor]:
    """Probes, and sequences that share none with them."""
    wanted = sizes["probes"] + sizes["sequences"]
    found = list(
        islice(batches(calibration, folder=folder, config=checkpoint.config, batch_size=1), wanted)
    )
    if len(found) < wanted:
        raise InputError(
            f"{Path(calibration)}: {len(found)} sequences, expected {wanted} to match by and to "
            "take losses on; calibrate on more"
        )
    short = shortened(found, sizes["length"])
    ids = torch.cat([batch.inputs["input_ids"] for batch in short[sizes["probes"] :]])
    return short[: sizes["probes"]], ids


def measure_averages(
    pairs: Sequence[tuple[Named, Named, Recorded | None]],
    corpora: Mapping[str, PathLike],
    output: Mapping[str, PathLike],
    settings: Mapping[str, Any],
) -> None:
    """Write aligned_merges, parquet and csv; fine-tunes of one base with their recorded gauges.

    `settings`: `tokens`, the corpus that is matched by, as `normgauge align --tokens` cuts it;
    `texts`, corpora of which `sequences` of `length` tokens that no run is trained on are what
    losses are taken on. InputError for a corpus with fewer.
    """
    rows: list[dict[str, Any]] = []
    for first, second, recorded in pairs:
        require_same_tokens(first.folder, second.folder)
        config = first.opened().config
        probes = prepared_inputs(
            config,
            probe_settings(config),
            Path(first.folder),
            settings["tokens"],
            Path(corpora[settings["tokens"]]),
            batch_size=1,
        ).batches
        texts = {name: _held_out(first, corpora[name], settings) for name in settings["texts"]}
        for row in average_rows((first.folder, second.folder), probes, texts, recorded):
            rows.append({"first": first.name, "second": second.name, **row})
    _write(output, "aligned_merges", rows)


def _held_out(model: Named, corpus: PathLike, settings: Mapping[str, Any]) -> torch.Tensor:
    """int64 (sequences, length): those that fine-tuning leaves out."""
    texts, tokenizer = corpus_texts(corpus)[0], load_tokenizer(model.folder).tokenizer
    found = split(consecutive(tokenizer, spread(texts, CHARACTERS), settings["length"]))[1]
    if len(found) < settings["sequences"]:
        raise InputError(
            f"{Path(corpus)}: {len(found)} sequences are held out, expected "
            f"{settings['sequences']}; ask for fewer"
        )
    places = torch.arange(settings["sequences"]) * len(found) // settings["sequences"]
    return found[places]


def measure_resuming(
    models: Sequence[Named],
    corpus: PathLike,
    output: Mapping[str, PathLike],
    settings: Mapping[str, Any],
) -> None:
    """Write resumed_training, parquet and csv. `settings`: `steps` in all, `seeds` of recorded
    gauges, `seed` of the batches, `held_out` sequences, and by optimizer its plan.
    """
    texts = spread(corpus_texts(corpus)[0], CHARACTERS)
    rows: list[dict[str, Any]] = []
    for model in models:
        checkpoint, tokenizer = model.opened(), load_tokenizer(model.folder).tokenizer
        name, revision = model.name.split("@")
        for optimizer, keys in settings["optimizers"].items():
            plan = plan_of(
                f"resuming.optimizers.{optimizer}",
                {**keys, "optimizer": optimizer},
                settings["steps"],
                settings["seed"],
            )
            training, held_out = split(consecutive(tokenizer, texts, plan.length))
            held_out = held_out[: settings["held_out"]]
            found = resumed_rows(checkpoint, plan, training.flatten(), held_out, settings["seeds"])
            rows += [{"model": name, "revision": revision, **row} for row in found]
    _write(output, "resumed_training", rows)


def _write(output: Mapping[str, PathLike], kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    tables.write(output["parquet"], kind, rows, execution_environment())
    tables.write_csv(output["csv"], kind, rows)
