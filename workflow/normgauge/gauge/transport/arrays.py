"""Named arrays in safetensors or npz files: read, moved one by one, written in the same format."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from normgauge.errors import InputError
from normgauge.gauge.transport.sidecar import Sidecar, check_origin, sidecar_path, write_sidecar
from normgauge.provenance import atomic_path

Arrays = dict[str, torch.Tensor]


def read_arrays(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, str]]:
    """The arrays of a .safetensors or .npz file by name, and its string metadata. Nothing is unpickled. Raises InputError otherwise."""
    found = Path(path)
    try:
        if found.suffix == ".safetensors":
            with safe_open(found, framework="pt") as handle:
                return {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata() or {}  # noqa: SIM118
        if found.suffix == ".npz":
            with np.load(found, allow_pickle=False) as archive:
                return {name: torch.from_numpy(archive[name]) for name in archive.files}, {}
    except (OSError, ValueError, TypeError, SafetensorError, zipfile.BadZipFile) as error:
        raise InputError(f"{found}: cannot be read ({error}); expected arrays in {found.suffix} format") from error
    raise InputError(f"{found}: unknown format {found.suffix or 'without ending'!r}; expected .safetensors or .npz")


def write_arrays(path: str | os.PathLike[str], arrays: Arrays, metadata: dict[str, str]) -> None:
    """Write arrays in the format of the path's ending, atomically."""
    with atomic_path(path) as temporary:
        if Path(path).suffix == ".npz":
            with open(temporary, "wb") as handle:
                np.savez(handle, allow_pickle=False, **{name: value.numpy() for name, value in arrays.items()})
        else:
            save_file({name: value.contiguous() for name, value in arrays.items()}, temporary, metadata=metadata or None)


def transport_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    move: Callable[[str, torch.Tensor], torch.Tensor],
    sidecar: Sidecar,
) -> None:
    """Move every array of a file with `move(name, value)` and write it, with its record beside it.

    Raises InputError, before anything is written, when the record beside the source names another model or the endings differ.
    """
    if Path(source).suffix != Path(destination).suffix:
        raise InputError(f"{destination}: expected the ending of {Path(source).name}; an artifact keeps its format")
    check_origin(source, sidecar)
    arrays, metadata = read_arrays(source)
    moved = {name: move(name, value) for name, value in arrays.items()}
    write_arrays(destination, moved, metadata)
    write_sidecar(sidecar_path(destination), sidecar)
