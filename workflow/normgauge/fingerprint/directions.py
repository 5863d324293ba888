"""The dead directions of a checkpoint as a file, and what can be constrained by them.

Behind a LayerNorm v . y = v . beta for every token, v = (1/gamma)/|1/gamma|. A linear map that
reads y gains nothing from what it does along v but a constant: for any matrix A,

    A y = A (I - v v^T) y + A v (v . beta).

So the part of a LoRA's down projection along v is a bias and no more, and may be taken out; and the
decoder of a dictionary that reconstructs y errs by no more without its parts along v, since y does
not vary there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from normgauge.anatomy.kernel import kernel_basis
from normgauge.anatomy.structure import NormKind
from normgauge.errors import InputError
from normgauge.fingerprint.kernel import NormFacts
from normgauge.provenance import atomic_path

Row = Mapping[str, Any]
FORMAT = "normgauge dead directions"


@dataclass(frozen=True)
class DeadDirections:
    """Of one norm: v (d,), 1/gamma of length 1; the kernel of its output (k, d), k = 0 behind an
    RMSNorm without zero gains; its kind; the constant (k,) that the output has along the kernel;
    and the floor, the share of sigma_max at or below which the measured output counts as not
    varying, None where nothing was measured.
    """

    v: np.ndarray
    kernel: np.ndarray
    kind: str
    constant: np.ndarray
    floor: float | None = None


def directions_of_norm(
    kind: str, gain: np.ndarray, bias: np.ndarray | None, floor: float | None = None
) -> DeadDirections:
    """gain, bias: (d,) float64, the effective gain."""
    basis = np.ascontiguousarray(kernel_basis(gain).T)
    dead = kind == NormKind.LAYER_NORM or not gain.all()
    kernel = basis if dead else np.empty((0, gain.size))
    constant = kernel @ (np.zeros_like(gain) if bias is None else bias)
    return DeadDirections(basis[0], kernel, str(kind), constant, floor)


def directions_of(norms: Iterable[NormFacts], rows: Iterable[Row]) -> dict[str, DeadDirections]:
    """Of each norm; the floor from the row of schema `fingerprint` of its output, where there is
    one.
    """
    floors = {
        row["norm"]: max(row["forward_floor"], row["accumulator_floor"]) / row["sigma_max"]
        for row in rows
        if row["norm"]
    }
    return {
        norm.name: directions_of_norm(norm.kind, norm.gain, norm.bias, floors.get(norm.name))
        for norm in norms
    }


def write_directions(
    path: str | os.PathLike[str],
    directions: Mapping[str, DeadDirections],
    metadata: Mapping[str, str],
) -> None:
    """A safetensors file: `{norm}/v` (d,), `{norm}/kernel` (k, d), `{norm}/constant` (k,), float64;
    kinds, floors and `metadata` as JSON in its one entry of metadata, so that its bytes do not hang
    on the order of a hash table.
    """
    tensors = {
        f"{norm}/{part}": np.ascontiguousarray(getattr(found, part))
        for norm, found in directions.items()
        for part in ("v", "kernel", "constant")
    }
    norms = {norm: {"kind": found.kind, "floor": found.floor} for norm, found in directions.items()}
    header = json.dumps({"norms": norms, **metadata}, sort_keys=True)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, {FORMAT: header})


def read_directions(path: str | os.PathLike[str]) -> dict[str, DeadDirections]:
    """By norm. Raises InputError for a file that is not of `write_directions`."""
    name = Path(path).name
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if FORMAT not in header:
                raise InputError(
                    f"{name}: holds no dead directions of this pipeline; make it with "
                    "`snakemake dead_directions`"
                )
            norms = json.loads(header[FORMAT])["norms"]
            return {
                norm: DeadDirections(
                    file.get_tensor(f"{norm}/v"),
                    file.get_tensor(f"{norm}/kernel"),
                    facts["kind"],
                    file.get_tensor(f"{norm}/constant"),
                    facts["floor"],
                )
                for norm, facts in norms.items()
            }
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{name}: cannot be read as dead directions ({error}); make it again"
        ) from error


def without_kernel(rows: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Rows (r, d) without their parts along the kernel (k, d): a LoRA's down projection, or the
    decoder of a dictionary.
    """
    return rows - (rows @ kernel.T) @ kernel


def absorbed(rows: np.ndarray, directions: DeadDirections) -> np.ndarray:
    """(r,) what the rows' parts along the kernel read of every output: their constant."""
    return rows @ directions.kernel.T @ directions.constant
