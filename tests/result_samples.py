"""Result folders with made-up numbers, of the same schemas as measured ones, for tests of tables,
figures and the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa

from normgauge.jackknife import standard_error
from normgauge.schemas.fingerprint import tables
from normgauge.tables import BOOL, FLOAT, INT, INTS, STRING, STRINGS

SEEDS = (42, 43, 44, 45, 46)


@dataclass(frozen=True)
class Sample:
    """A made-up checkpoint. `growth` is the ratio at the last block; `noise_random` puts the twins'
    Schur values below floor.
    """

    model: str
    revision: str = "1.0"
    norm: str = "LayerNorm"
    placement: str = "pre-norm"
    blocks: int = 6
    width: int = 384
    n: int = 8192
    provenance: str = "published"
    precision: str = "full"
    stored: str = "F32"
    objective: str | None = "next-token CE"
    modality: str = "text"
    behaviour: str = "depth-invariant"
    growth: float = 20.0
    noise_random: bool = True
    noise_trained: bool = False
    stacks: tuple[str, ...] = ("decoder",)
    dtypes: tuple[str, ...] = ("float32",)
    flags: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def is_random(self) -> bool:
        return self.provenance == "random initialisation"


def filled(schema: pa.Schema, **values: Any) -> dict[str, Any]:
    """A row of the schema with nulls where allowed and neutral values elsewhere, then `values`."""
    neutral = {STRING: "", INT: 0, FLOAT: 0.0, BOOL: False, STRINGS: [], INTS: []}
    neutral[pa.list_(FLOAT)] = []
    row = {each.name: None if each.nullable else neutral[each.type] for each in schema}
    assert set(values) <= set(row), set(values) - set(row)
    return uncertain(row | values)


def uncertain(row: dict[str, Any]) -> dict[str, Any]:
    """The row with replicates of eight groups, spread over 2 % in a way of each row's own, wherever
    it has a column for their error.
    """
    names = [
        name.removesuffix("_se")
        for name in row
        if name.endswith("_se") and row.get(name.removesuffix("_se"))
    ]
    if "replicates" not in row or row.get("below_floor"):
        return row
    samples = [row["n"] // 8] * 8
    waves = {name: 1 + 0.02 * numpy.sin(numpy.arange(8) + 3 * row[name]) for name in names}
    replicates = {name: (row[name] * wave).tolist() for name, wave in waves.items()}
    if "delta" in replicates:  # what varies is the ratio
        replicates["delta"] = (1 - (1 - row["delta"]) * waves["delta"]).tolist()
    errors = {name: None for name in row if name.endswith("_se")}
    errors |= {
        f"{name}_se": standard_error(row[name], found, samples)
        for name, found in replicates.items()
    }
    return row | errors | {"group_samples": samples, "replicates": sorted(replicates.items())}


def ratios(sample: Sample, seed: int | None) -> list[float]:
    """ratio_to_embedding of X_1..X_L."""
    generator = numpy.random.default_rng(seed or 7)
    growth = sample.growth if seed is None else 2.0
    return [
        growth ** (block / sample.blocks) * (1 + 0.05 * generator.random())
        for block in range(1, sample.blocks + 1)
    ]


def stack_rows(sample: Sample, seed: int | None) -> list[dict[str, Any]]:
    profile = ratios(sample, seed)
    layer = sample.norm == "LayerNorm"
    rows = []
    for stack in sample.stacks:
        for dtype in sample.dtypes:
            row = filled(
                tables.schemas["stacks"],
                model=sample.model,
                revision=sample.revision,
                stack=stack,
                primary=stack == sample.stacks[-1],
                family="sample",
                provenance=sample.provenance,
                precision=sample.precision,
                objective=sample.objective,
                placement=sample.placement,
                norm_kind=sample.norm,
                norm_kind_parameters=sample.norm,
                norm_kind_activations=sample.norm,
                norm_kinds_agree=True,
                blocks=sample.blocks,
                width=sample.width,
                n=sample.n,
                n_over_d=sample.n / sample.width,
                forward_dtype=dtype,
                accumulation="cov64",
                body_sigma_low=0.7 * min(profile),
                body_sigma_high=0.7 * max(profile),
                behaviour=sample.behaviour,
                behaviour_smallest_active=sample.behaviour,
                fixed_rank=sample.width,
                fixed_rank_min_ratio=min(profile),
                fixed_rank_max_ratio=max(profile),
                min_ratio=min(profile),
                min_ratio_block=1,
                max_ratio=max(profile),
                output_ratio=profile[-1],
                first_block_max_ratio=max(profile) / profile[0],
                body_ratio=max(profile) / min(profile),
                first_block_post_norm_ratio=(2.95 if seed is None else 0.06 + 0.001 * seed)
                / profile[0],
                post_norm_ratio=2.95 if seed is None else 0.06 + 0.001 * seed,
                post_norm_cos_gamma_inv=0.99999 if layer else 0.021,
                post_norm_cos_ones=0.973 if layer else 0.013,
                random_direction_null=sample.width**-0.5,
                protocol=list(sample.protocol),
                flags=list(sample.flags),
            )
            rows.append(uncertain(row | (sample.changes if seed is None else {})))
    return rows


def fingerprint_rows(sample: Sample, seed: int | None) -> list[dict[str, Any]]:
    profile = [1.0, *ratios(sample, seed)]
    rows = []
    for stack in sample.stacks:
        for dtype in sample.dtypes:
            for block, ratio in enumerate(profile):
                tap = "embedding" if block == 0 else "output"
                site = f"{stack}/embedding" if block == 0 else f"{stack}/block.{block}/output"
                place = {
                    "site": site,
                    "stack": stack,
                    "block": block,
                    "tap": tap,
                    "n": sample.n,
                    "d": sample.width,
                }
                arithmetic = {
                    "forward_dtype": dtype,
                    "accumulation": "cov64",
                    "forward_floor": 1e-5,
                    "accumulator_floor": 1e-6,
                }
                rows.append(
                    filled(
                        tables.schemas["fingerprint"],
                        **place,
                        **arithmetic,
                        sigma_min=0.7 * ratio,
                        sigma_active_min=0.7 * ratio,
                        ratio_to_embedding=ratio,
                        fixed_rank_ratio=ratio,
                    )
                )
    return rows


def schur_rows(sample: Sample, seed: int | None) -> list[dict[str, Any]]:
    generator = numpy.random.default_rng(seed or 7)
    noisy = sample.noise_trained if seed is None else sample.noise_random
    rows = []
    for stack in sample.stacks:
        for dtype in sample.dtypes:
            for block in range(1, sample.blocks + 1):
                for tap in ("query_key_value_input", "mlp_up_input", "mlp_down_input"):
                    place = {
                        "site": f"{stack}/block.{block}/{tap}",
                        "stack": stack,
                        "block": block,
                        "tap": tap,
                    }
                    place |= {
                        "n": sample.n,
                        "d": sample.width,
                        "forward_dtype": dtype,
                        "accumulation": "cov64",
                    }
                    form = 8e-14 if noisy else 2.4
                    delta = (
                        0.03 * generator.random()
                        if noisy
                        else 1 - 10 ** -(1 + (2 if seed is None else 0) + generator.random())
                    )
                    fed = tap != "mlp_down_input"
                    predicted = sample.norm == "LayerNorm" and seed is None and fed
                    rows.append(
                        filled(
                            tables.schemas["schur"],
                            **place,
                            lambda_min=form * (1 - delta),
                            quadratic_form=form if fed else None,
                            delta=delta if fed else None,
                            delta_recovered=delta if fed else None,
                            delta_lower=delta - 1e-4
                            if predicted and block == 2 and not noisy
                            else None,
                            predicted_ratio=1.1 * (1 - delta) if predicted else None,
                            mahalanobis_squared=1 / (1.1 * (1 - delta)) if predicted else None,
                            bottom_cos_gamma_inv=0.998 if fed else None,
                            floor=3e-12,
                            below_floor=noisy,
                        )
                    )
    return rows


ROWS = {"stacks": stack_rows, "fingerprint": fingerprint_rows, "schur": schur_rows}


def write_results(root: Path, samples: Iterable[Sample]) -> list[Path]:
    """Write each sample's result folder under `root`; the files, in order."""
    paths = []
    for sample in samples:
        folder = root / sample.model / sample.revision
        folder.mkdir(parents=True)
        manifest = {
            "model": sample.model,
            "revision": sample.revision,
            "provenance": sample.provenance,
            "stored_dtypes": {sample.stored: 9, "I64": 1},
            "modality": sample.modality,
            "calibration": "random-noise" if sample.modality == "audio" else "kjv",
        }
        (folder / "checkpoint.json").write_text(json.dumps(manifest))
        paths.append(folder / "checkpoint.json")
        own_seed = int(sample.revision.removeprefix("seed")) if sample.is_random else None
        for kind, build in ROWS.items():
            paths.append(folder / f"{kind}.parquet")
            tables.write(
                paths[-1],
                kind,
                build(sample, own_seed),
                {"model": sample.model, "revision": sample.revision},
            )
            if not sample.is_random:
                paths.append(folder / "reinitialised" / f"{kind}.parquet")
                twins = [{"seed": seed, **row} for seed in SEEDS for row in build(sample, seed)]
                tables.write(
                    paths[-1],
                    f"reinitialised_{kind}",
                    twins,
                    {"model": sample.model, "revision": sample.revision},
                )
    return paths


STUDY = (
    Sample(
        "minilm-l6",
        "0.1.0",
        placement="post-norm",
        objective="sentence similarity",
        behaviour="not applicable (post-norm)",
        growth=0.4,
        stacks=("encoder",),
    ),
    Sample(
        "rxnfp-pretrained",
        "0.1.0",
        placement="post-norm",
        blocks=12,
        width=256,
        objective="masked LM",
        behaviour="not applicable (post-norm)",
        growth=0.2,
        stacks=("encoder",),
    ),
    Sample(
        "smollm2-135m",
        "0.1.2",
        "RMSNorm",
        blocks=30,
        width=576,
        precision="quantised",
        stored="Q4_1",
        growth=60,
        noise_random=False,
        flags=("n_over_d_below_10",),
        dtypes=("float32", "float64"),
    ),
    Sample(
        "whisper-tiny-en",
        "0.1.0",
        blocks=4,
        precision="half",
        stored="F16",
        objective="speech to text",
        modality="audio",
        stacks=("encoder", "decoder"),
        growth=5,
    ),
    Sample(
        "gpt2-nano",
        "seed42",
        blocks=4,
        width=256,
        provenance="trained here",
        growth=9,
        dtypes=("float32", "float64"),
    ),
    Sample(
        "llama-nano",
        "seed42",
        "RMSNorm",
        blocks=4,
        width=256,
        provenance="trained here",
        noise_random=False,
        behaviour="intermediate-dip",
        growth=1.3,
        changes={"min_ratio": 0.4, "norm_kinds_agree": False, "norm_kind_activations": "LayerNorm"},
    ),
    Sample(
        "gemma-3-test",
        "local",
        "RMSNorm",
        "sandwich",
        blocks=8,
        width=640,
        noise_random=False,
        growth=300,
        behaviour="depth-decreasing",
        changes={
            "body_sigma_low": None,
            "body_sigma_high": None,
            "max_ratio": None,
            "post_norm_ratio": None,
            "post_norm_cos_gamma_inv": None,
        },
    ),
    Sample(
        "pythia-160m",
        "a" * 40,
        "LayerNorm",
        "parallel pre-norm",
        blocks=12,
        width=768,
        growth=19.7,
        dtypes=("float32", "float64"),
    ),
    *(
        Sample(
            "pythia-70m",
            f"seed{seed}",
            placement="parallel pre-norm",
            width=512,
            n=131072,
            provenance="random initialisation",
            dtypes=("float32", "float64"),
        )
        for seed in SEEDS
    ),
)
