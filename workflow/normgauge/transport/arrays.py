"""Named arrays in safetensors, npz or GGUF files: read, moved one by one, written in the same
format.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.readers.gguf_container import check_header
from normgauge.errors import InputError, one_line
from normgauge.gauge.groups import HeadMap, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.orthogonal import ORTHOGONALITY
from normgauge.gauge.requirements import require_fitting
from normgauge.transport.sidecar import Sidecar, check_origin, new_artifact

Arrays = dict[str, torch.Tensor]
StreamElement = Monomial | Orthogonal | HeadMap
GGUF_DTYPES = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


@one_line("arrays")
def read_arrays(path: str | os.PathLike[str]) -> tuple[Arrays, dict[str, str]]:
    """The arrays of a .safetensors, .npz or .gguf file by name, and string metadata. Nothing is
    unpickled. Raises InputError otherwise.
    """
    found = Path(path)
    try:
        if found.suffix == ".safetensors":
            with safe_open(found, framework="pt") as handle:
                names = list(handle.keys())
                return {name: handle.get_tensor(name) for name in names}, handle.metadata() or {}
        if found.suffix == ".npz":
            with np.load(found, allow_pickle=False) as archive:
                return {name: torch.from_numpy(archive[name]) for name in archive.files}, {}
        if found.suffix == ".gguf":
            return _read_gguf(found), {}
    except (OSError, ValueError, TypeError, SafetensorError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{found}: cannot be read ({error}); expected arrays in {found.suffix} format"
        ) from error
    raise InputError(
        f"{found}: unknown format {found.suffix or 'without ending'!r}; expected .safetensors, "
        ".npz or .gguf"
    )


def save_arrays(path: Path, suffix: str, arrays: Arrays, metadata: dict[str, str]) -> None:
    """Write arrays at a temporary path in the format that an ending names, .npz or .safetensors."""
    if suffix == ".npz":
        with open(path, "wb") as handle:
            np.savez(
                handle,
                allow_pickle=False,
                **{name: value.numpy() for name, value in arrays.items()},
            )
    else:
        save_file(
            {name: value.contiguous() for name, value in arrays.items()},
            path,
            metadata=metadata or None,
        )


def element_on(anatomy: Anatomy, gauge: Gauge, space: str) -> StreamElement:
    """What the gauge does to a space. Raises InputError for a gauge that does not fit the model,
    and when it leaves the space alone, since an artifact then needs no transport.
    """
    require_fitting(anatomy, gauge)
    if all(space != each.name for each in anatomy.spaces):
        raise InputError(
            f"{anatomy.architecture} has no space {space!r}; the gauge moves "
            f"{', '.join(gauge.elements)}"
        )
    element = gauge.on_space(anatomy, space)
    if element is None:
        raise InputError(f"the gauge does not move {space}; it moves {', '.join(gauge.elements)}")
    return element


def keeps_lengths(element: StreamElement) -> bool:
    """Whether the element is orthogonal, to 1e-10."""
    if isinstance(element, HeadMap):
        square = element.matrices.transpose(0, 2, 1) @ element.matrices
        return bool((np.abs(square - np.eye(square.shape[-1])) <= ORTHOGONALITY).all())
    return isinstance(element, Orthogonal) or element.is_signed_permutation


def transport_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    move: Callable[[Mapping[str, torch.Tensor], str], Arrays],
    sidecar: Sidecar,
) -> None:
    """Move the arrays of a file with `move(arrays by name, source)` and write them, with their
    record beside it.

    Raises InputError, before anything is written, when the destination or its record exists, the
    record beside the source names another model, or the endings differ.
    """
    if Path(source).suffix != Path(destination).suffix:
        raise InputError(
            f"{destination}: expected the ending of {Path(source).name}; an artifact keeps its "
            "format"
        )
    check_origin(source, sidecar)
    with new_artifact(destination, sidecar) as temporary:
        arrays, metadata = read_arrays(source)
        moved = move(arrays, os.fspath(source))
        if Path(source).suffix == ".gguf":
            _rewrite_gguf(Path(source), temporary, moved)
        else:
            save_arrays(temporary, Path(source).suffix, moved, metadata)


def _read_gguf(path: Path) -> Arrays:
    """The tensors of a GGUF file that stores plain numbers, such as llama.cpp's control vectors."""
    arrays = {}
    for entry in check_header(path).tensors:
        if entry.type not in GGUF_DTYPES:
            raise InputError(
                f"{path}: tensor {entry.name} is {entry.type.name}; expected F32 or F16, which a "
                "gauge moves exactly"
            )
        dtype = GGUF_DTYPES[entry.type]
        values = np.fromfile(
            path, dtype, entry.size // np.dtype(dtype).itemsize, offset=entry.start
        )
        arrays[entry.name] = torch.from_numpy(values.reshape(entry.shape))
    return arrays


def _rewrite_gguf(source: Path, destination: Path, arrays: Arrays) -> None:
    """A copy of the source with its tensors replaced in their places, every other byte as it
    was.
    """
    shutil.copyfile(source, destination)
    with open(destination, "r+b") as handle:
        for entry in check_header(source).tensors:
            handle.seek(entry.start)
            handle.write(arrays[entry.name].numpy().tobytes())
