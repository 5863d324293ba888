"""Exact recovery: alpha search against the sieve, QR against LAPACK alone, and a whole checkpoint
with its forward passes.

How to run it: benchmarks/README.md
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import lapack

from normgauge.anatomy.structure import NormKind
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.exact_recovery import certificate, gauge_line, lattice, maps, solve
from normgauge.exact_recovery.arithmetic import ROUTES, arithmetic
from normgauge.exact_recovery.description import Description
from normgauge.exact_recovery.grids import grid
from normgauge.exact_recovery.least_squares import design_matrix, factorise
from normgauge.exact_recovery.norm_parameters import normalised
from normgauge.exact_recovery.observe import observe
from side_by_side import interleaved, peak_memory_mb, write_results

FLOAT32, TORCH = grid("float32"), arithmetic("torch")
ROWS, WIDTH, COLUMNS = 8192, 768, 2304  # GPT-2's query, key and value map


def row(
    what: str, candidate: str, seconds: float, of: str = "", reference: float | None = None
) -> dict[str, object]:
    ratio = "" if reference is None else f"{seconds / reference:.3g}"
    return {
        "what": what,
        "candidate": candidate,
        "seconds": f"{seconds:.4g}",
        "ratio": ratio,
        "ratio_of": of,
    }


def planted() -> tuple[maps.Design, np.ndarray]:
    """A LayerNorm with seeded gains and biases and a map behind it: the design and the (ROWS,
    COLUMNS) outputs.
    """
    generator = np.random.default_rng(0)
    gains, biases = (
        FLOAT32.round(generator.lognormal(0, 0.5, WIDTH)),
        FLOAT32.round(generator.standard_normal(WIDTH) * 0.1),
    )
    inputs = (
        normalised(generator.standard_normal((ROWS, WIDTH)), NormKind.LAYER_NORM, 1e-5) * gains
        + biases
    )
    weights = FLOAT32.round(generator.standard_normal((WIDTH, COLUMNS)) * 0.02)
    return maps.gauge_design(inputs, gains, biases, TORCH), inputs @ weights + FLOAT32.round(
        generator.standard_normal(COLUMNS) * 0.1
    )


def observed(
    folder: Path, tensors: Mapping[str, torch.Tensor]
) -> tuple[str, maps.Design, np.ndarray]:
    """The middle one of a checkpoint's maps behind a LayerNorm: its name, design and outputs."""
    description = Description.read(folder)
    behind = [item for item in description.maps if description.layer_norm_behind(item)]
    item = behind[len(behind) // 2]
    norm = next(norm for norm in description.norms if norm.name == item.norm)
    gains, biases = (tensors[name].double().numpy() for name in (norm.gain, norm.bias))
    return (
        item.module,
        maps.gauge_design(item.inputs.read(folder), gains, biases, TORCH),
        item.outputs.read(folder),
    )


def search_rows(name: str, design: maps.Design, outputs: np.ndarray) -> list[dict[str, object]]:
    """Seconds per column to find alpha and to verify it on every coordinate; of the sieve and the
    walk on the first of these columns.
    """
    solved = maps.recover(design, [outputs], [True], FLOAT32, TORCH)[0].solved
    assert solved is not None

    def find_and_verify() -> None:
        found = lattice.search(solved.line, solved.values, solved.noise, FLOAT32, 0)
        placed = gauge_line.place(
            solved.values,
            solved.noise,
            solved.line.direction,
            found.alpha,
            found.alpha_noise,
            FLOAT32,
        )
        assert placed.accepted.all()

    column = certificate.candidates(solved.line, solved.values[:, 0], solved.noise[:, 0], FLOAT32)
    candidates = {
        "search": find_and_verify,
        "walk": lambda: certificate.walk(column),
        "sieve": lambda: certificate.sieve(column),
    }
    seconds = interleaved(candidates, 3)
    coordinates, columns = solved.values.shape
    found = seconds["search"] / columns
    what = f"one column of {coordinates} coordinates, {name}"
    return [
        row(what, f"search and verification (1 / {columns} of all)", found),
        row(what, f"sieve of {column.count:,} candidates", seconds["sieve"], "search", found),
        row(what, "walk of the same candidates", seconds["walk"], "search", found),
    ]


def factorisation_rows() -> list[dict[str, object]]:
    """QR with an explicit orthogonal factor, and the whole `factorise` (row scales, QR, influence),
    against geqrf and orgqr alone.
    """
    design = design_matrix(np.random.default_rng(1).standard_normal((ROWS, WIDTH)), intercept=False)
    fortran = np.asfortranarray(design)

    def alone() -> None:
        reflectors, tau, _, _ = lapack.dgeqrf(fortran, lwork=64 * WIDTH)
        lapack.dorgqr(reflectors, tau, lwork=64 * WIDTH)

    candidates = {"LAPACK geqrf and orgqr": alone} | {
        f"{name} route": lambda route=route: route.qr(design) for name, route in ROUTES.items()
    }
    seconds = interleaved(
        {**candidates, "factorise, torch route": lambda: factorise(design, TORCH)}, 3
    )
    reference = seconds["LAPACK geqrf and orgqr"]
    return [
        row(f"QR {ROWS} x {WIDTH}", name, value, "LAPACK geqrf and orgqr", reference)
        for name, value in seconds.items()
    ]


def checkpoint_rows(folder: Path) -> list[dict[str, object]]:
    """All of a checkpoint in one process: forward passes with their files, then the solver; and the
    search on one of its maps.
    """
    checkpoint = open_checkpoint(folder)
    with tempfile.TemporaryDirectory() as scratch:
        observations, start = Path(scratch) / "observations", time.perf_counter()
        observe(checkpoint, observations, ROWS, 0)
        forwards = time.perf_counter()
        solve.write(Path(scratch) / "solution", *solve.solve_folder(observations, TORCH))
        solved = time.perf_counter()
        searched = search_rows(*observed(observations, checkpoint.tensors))
    name = folder.resolve().parts[-3]
    return [
        *searched,
        row(name, "forward passes", forwards - start),
        row(name, "solver", solved - forwards),
        row(name, f"both (peak memory {peak_memory_mb():.0f} MiB)", solved - start),
    ]


if __name__ == "__main__":
    write_results(
        "recovery",
        [
            *search_rows("planted", *planted()),
            *factorisation_rows(),
            *checkpoint_rows(Path(sys.argv[1])),
        ],
    )
