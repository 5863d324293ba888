"""What `carry` is given, recognised by what is in it, and the function that moves each kind."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import Gauge
from normgauge.transport.adapters import CONFIG, transport_adapter
from normgauge.transport.arrays import read_arrays
from normgauge.transport.dictionaries import (
    LAYOUT,
    dictionary_weights,
    stated_hook,
    transport_dictionary,
)
from normgauge.transport.optimizers import transport_optimizer
from normgauge.transport.sidecar import Sidecar
from normgauge.transport.vectors import transport_vectors

ENCODERS = {"W_enc", "W_dec", "encoder.weight", "decoder.weight"}
ARRAYS = (".safetensors", ".npz", ".gguf")
TORCH = (".pt", ".pth", ".bin")


class Kind(StrEnum):
    """The kinds of artifacts."""

    ADAPTER = "LoRA adapter"
    DICTIONARY_FOLDER = "dictionary folder"
    DICTIONARY = "dictionary"
    VECTORS = "vectors"
    OPTIMIZER = "optimizer state"


def kind_of(path: Path) -> Kind:
    """What lies at a path. Raises InputError, naming what is known, for anything else."""
    if path.is_dir():
        if (path / CONFIG).is_file():
            return Kind.ADAPTER
        if (path / "cfg.json").is_file():
            dictionary_weights(path)
            return Kind.DICTIONARY_FOLDER
        raise InputError(
            f"{path}: expected a folder with {CONFIG} (PEFT) or cfg.json (SAELens); name the "
            "artifact's own folder or file"
        )
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder; name an artifact")
    if path.suffix in TORCH:
        return Kind.OPTIMIZER
    if path.suffix not in ARRAYS:
        raise InputError(
            f"{path}: unknown ending; expected {', '.join(ARRAYS)}, or {', '.join(TORCH)} for an "
            "optimizer's state"
        )
    names = read_arrays(path)[0].keys()
    return (
        Kind.DICTIONARY if names and names <= LAYOUT.keys() and names & ENCODERS else Kind.VECTORS
    )


def move(
    kind: Kind,
    source: Path,
    destination: Path,
    anatomy: Anatomy,
    gauge: Gauge,
    space: str | None,
    sidecar: Sidecar,
) -> None:
    """Write the artifact, moved by the gauge. `space`: what vectors and dictionaries live in; None
    takes a dictionary's hook, or the last residual stream. Raises InputError as the functions of
    `gauge.transport`, before anything is written.
    """
    stream = space or anatomy.primary_stack.space
    match kind:
        case Kind.ADAPTER:
            transport_adapter(source, destination, anatomy, gauge, sidecar)
        case Kind.OPTIMIZER:
            transport_optimizer(source, destination, anatomy, gauge, sidecar)
        case Kind.VECTORS:
            transport_vectors(source, destination, anatomy, gauge, stream, sidecar)
        case Kind.DICTIONARY | Kind.DICTIONARY_FOLDER:
            transport_dictionary(
                source,
                destination,
                anatomy,
                gauge,
                space if stated_hook(source) else stream,
                sidecar,
            )
