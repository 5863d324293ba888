"""Does a small direction of the stream stay small on other inputs? (arXiv 2606.19491, table 5.)

u_A is the bottom active direction of the stream under calibration A. Under another calibration B
its variance is u_A^T C_B u_A. By Rayleigh's principle that is at least lambda_min(C_B): the excess,
their quotient, is 1 where both inputs agree on the direction and large where it is dead relative to
A alone. Behind a LayerNorm the kernel 1/gamma is the same on every input.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.fingerprint.jackknife import bottoms_without, group_samples
from normgauge.fingerprint.profile import behaviour
from normgauge.fingerprint.study import Measurement, fingerprint_rows
from normgauge.jackknife import standard_error
from normgauge.moments import Moments, leave_one_out

Row = Mapping[str, Any]
FORWARD = "float32"
GROUPS = ("residual", "terminal")


@dataclass(frozen=True)
class Reading:
    """One calibration: its name, the moments of the sites, their rows by site id, and the bottom
    active direction (d,) of each block's output.
    """

    name: str
    measurement: Measurement
    rows: Mapping[str, Row]
    bottoms: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, name: str, measurement: Measurement, subject: Subject) -> Reading:
        rows = {row["site"]: row for row in fingerprint_rows(measurement, subject.identity)}
        bottoms = {
            site: bottom_active(measurement.moments[site], row)
            for site, row in rows.items()
            if row["tap"] == "output" and row["sigma_active_min"]
        }
        return cls(name, measurement, rows, bottoms)

    def at(self, site: str) -> tuple[Moments, Row, np.ndarray | None]:
        return self.measurement.moments[site], self.rows[site], self.bottoms.get(site)

    def profile(self, stack: str) -> list[Row]:
        """Rows of X_1..X_L."""
        rows = [
            row for row in self.rows.values() if (row["stack"], row["tap"]) == (stack, "output")
        ]
        return sorted(rows, key=lambda row: row["block"])


def calibration_rows(
    subject: Subject, calibrations: Mapping[str, PathLike], batch_size: int, groups: int
) -> Rows:
    """Rows of schema `table5`: one per stream and ordered pair of calibrations, each with itself as
    well.
    """
    readings = []
    for name, path in calibrations.items():
        [measurement] = subject.measure(path, {FORWARD: GROUPS}, batch_size, groups)
        readings.append(Reading.of(name, measurement, subject))
    return [
        _pair(subject, stack, first, second)
        for stack in subject.identity.blocks
        for first in readings
        for second in readings
    ]


def _pair(subject: Subject, stack: str, first: Reading, second: Reading) -> dict[str, Any]:
    """Where the profile under the first calibration is lowest, that direction under the second."""
    own, other = first.profile(stack), second.profile(stack)
    placement = subject.identity.placement
    known = [row for row in own if row["fixed_rank_ratio"] is not None]
    worst = min(known, key=lambda row: row["fixed_rank_ratio"], default=own[-1])["block"]
    sites = [row["site"] for row in own]
    lowest = sites[worst - 1]
    pairs = [compared(first.at(site), second.at(site)) for site in sites]
    at = pairs[worst - 1]
    errors = (
        standard_errors(first.at(lowest), second.at(lowest), at)
        if first is not second and at.excess is not None
        else (None, None)
    )
    excesses = [pair.excess for pair in pairs if pair.excess is not None]
    there = second.rows[lowest]
    return {
        **subject.labels,
        "kind": subject.kind,
        "seed": subject.seed,
        "stack": stack,
        "placement": placement,
        "blocks": len(own),
        "calibration": first.name,
        "measured_on": second.name,
        "n": there["n"],
        "d": there["d"],
        "forward_dtype": there["forward_dtype"],
        "accumulation": there["accumulation"],
        "worst_block": worst,
        "excess": at.excess,
        "excess_se": errors[0],
        "excess_median": float(np.median(excesses)) if excesses else None,
        "excess_largest": max(excesses, default=None),
        "lift": at.lift,
        "lift_se": errors[1],
        "cosine": at.cosine,
        "sigma_over_floor": at.over_floor,
        "ratio": first.rows[lowest]["fixed_rank_ratio"],
        "ratio_se": first.rows[lowest]["fixed_rank_ratio_se"],
        "ratio_measured_on": there["fixed_rank_ratio"],
        "output_ratio": own[-1]["fixed_rank_ratio"],
        "output_ratio_measured_on": other[-1]["fixed_rank_ratio"],
        "behaviour": _behaviour(placement, own),
        "behaviour_measured_on": _behaviour(placement, other),
        **_kernel_columns(stack, first, second),
    }


def _behaviour(placement: str, profile: Sequence[Row]) -> str:
    return behaviour(
        placement,
        [row["fixed_rank_ratio"] for row in profile],
        [row["fixed_rank_ratio_upper"] for row in profile],
    )


def _kernel_columns(stack: str, first: Reading, second: Reading) -> dict[str, Any]:
    """|cos| with 1/gamma after the last norm under both, and their difference."""
    cosines = [reading.rows.get(f"{stack}/terminal_norm") for reading in (first, second)]
    own, other = (row["cos_gamma_inv"] if row else None for row in cosines)
    return {
        "kernel_cosine": own,
        "kernel_cosine_measured_on": other,
        "kernel_cosine_change": None if own is None or other is None else abs(own - other),
    }


@dataclass(frozen=True)
class Comparison:
    """The bottom active direction under A, measured under B; None where the number of directions
    below the floor differs, so that the two bottoms are not those of one space.
    """

    excess: float | None = None
    lift: float | None = None
    cosine: float | None = None
    over_floor: float | None = None


Site = tuple[Moments, Row, np.ndarray | None]
"""A site under one calibration: its moments, its row, its bottom active direction (d,)."""


def bottom_active(moments: Moments, row: Row) -> np.ndarray:
    """(d,) unit vector of the smallest singular value above the floor."""
    null = row["null_dimension"]
    return moments.spectrum().bottom(null + 1)[:, null]


def compared(first: Site, second: Site) -> Comparison:
    """excess = u^T C_B u / lambda_min(C_B) and lift = sqrt(u^T C_B u / lambda_min(C_A)), u the
    bottom active direction under A (`first`).
    """
    (own, row, u), (other, there, w) = first, second
    if u is None or w is None or row["null_dimension"] != there["null_dimension"]:
        return Comparison()
    along = _variance(other, u)
    floor = max(there["forward_floor"], there["accumulator_floor"]) ** 2 / other.n
    return Comparison(
        along / _variance(other, w),
        (along / _variance(own, u)) ** 0.5,
        float(abs(u @ w)),
        (along / floor) ** 0.5,
    )


def standard_errors(
    first: Site, second: Site, found: Comparison
) -> tuple[float | None, float | None]:
    """Of (excess, lift): the jackknife over the sequences of each calibration with the other held,
    the two added in quadrature.
    """
    (own, row, u), (other, there, w) = first, second
    samples = [group_samples(moments) for moments in (own, other)]
    if not all(samples) or u is None or w is None:
        return None, None
    null = row["null_dimension"]
    lowest = _variance(own, u), _variance(other, w)
    turned = [
        (_variance(other, each.vectors[:, 0]), each.values[0] ** 2 / own.n)
        for each in bottoms_without(own, True, null, row["sigma_active_min"], 1)
    ]
    moved = [
        (_variance(left, u), each.values[0] ** 2 / other.n)
        for left, each in zip(
            leave_one_out(other),
            bottoms_without(other, True, null, there["sigma_active_min"], 1),
            strict=True,
        )
    ]
    excess = _both(
        found.excess, samples, [a / lowest[1] for a, _ in turned], [a / b for a, b in moved]
    )
    lift = _both(
        found.lift,
        samples,
        [(a / b) ** 0.5 for a, b in turned],
        [(a / lowest[0]) ** 0.5 for a, _ in moved],
    )
    return excess, lift


def _both(value: float | None, samples: list[list[int]], *replicates: list[float]) -> float | None:
    errors = [
        standard_error(value, left, part) for left, part in zip(replicates, samples, strict=True)
    ]
    known = [error for error in errors if error is not None]
    return float(np.hypot.reduce(known)) if known else None


def _variance(moments: Moments, direction: np.ndarray) -> float:
    return float(moments.length_along(direction) ** 2 / moments.n)


def measure_calibrations(
    *,
    folder: PathLike,
    manifest: PathLike,
    entry: Mapping[str, Any],
    corpora: Mapping[str, PathLike | None],
    tokenizer: PathLike | None,
    settings: Settings,
    seeds: Sequence[int],
    batch_size: int,
    groups: int,
) -> Rows:
    """The rows of one checkpoint, and of its re-initialised twins of these seeds, on these corpora.

    entry: of the model table. corpora: name -> file, None for the generated ones.
    """
    subject = Subject.read(folder, manifest, entry.get("config"))
    with tempfile.TemporaryDirectory() as scratch:
        prepared = {}
        for name, corpus in corpora.items():
            prepared[name] = Path(scratch) / f"{name}.parquet"
            prepare(
                {**entry, "calibration": name},
                folder,
                corpus,
                prepared[name],
                config=subject.checkpoint.config,
                settings=settings,
                tokenizer_folder=tokenizer,
            )
        subjects = [subject, *(subject.reinitialised(seed) for seed in seeds)]
        return [
            row for each in subjects for row in calibration_rows(each, prepared, batch_size, groups)
        ]
