"""What lies in a checkpoint's folder beside the weights that are read: what follows a gauge, and
what would stay in old coordinates.

A file holds numbers unless it is text or of a kind known to hold none that a gauge moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import Gauge
from normgauge.transport.optimizers import moved_state, read_state
from normgauge.transport.outputs import tree_of
from normgauge.transport.pipelines import Pipeline, pipeline_of

PROBED = 1 << 16  # bytes of a file that are looked at
CONTROL = bytes({*range(32)} - {*b"\t\n\f\r\x1b"})  # which text has not
NUMBERS = (  # also where such a file is empty, or a pointer that git keeps in its place
    *(
        "*.safetensors",
        "*.bin",
        "*.pt",
        "*.pth",
        "*.ckpt",
        "*.h5",
        "*.hdf5",
        "*.keras",
        "*.msgpack",
        "*.onnx",
        "*.onnx_data",
        "*.tflite",
    ),
    *(
        "*.gguf",
        "*.ggml",
        "*.npz",
        "*.npy",
        "*.pkl",
        "*.pickle",
        "*.pb",
        "*.ot",
        "*.engine",
        "*.nemo",
        "*.distcp",
        "*.mlmodel",
    ),
    # they name the shards of such files
    *("*.bin.index.json", "*.h5.index.json", "*.msgpack.index.json"),
)
NO_NUMBERS = (
    *(
        "training_args.bin",
        "scheduler.pt",
        "scaler.pt",
        "rng_state*.pt*",
        "random_states_*.pkl",
        "*tfevents*",
        ".DS_Store",
        "Thumbs.db",
    ),
    *(
        "*.model",
        "*.png",
        "*.jpg",
        "*.jpeg",
        "*.gif",
        "*.webp",
        "*.bmp",
        "*.ico",
        "*.pdf",
        "*.mp4",
        "*.wav",
        "*.flac",
        "*.mp3",
        "*.pyc",
    ),
)
OPTIMIZERS = ("optimizer*.pt", "optimizer*.pth", "optimizer*.bin")
LISTED = 8  # files that an error names


@dataclass(frozen=True)
class Beside:
    """What a gauge does to a folder's other files, by their relative paths.

    pipeline: the modules after the model. states: optimizer states, moved. left: files that would
    stay in old coordinates, and why.
    """

    pipeline: Pipeline = field(default_factory=Pipeline)
    states: Mapping[Path, Any] = field(default_factory=dict)
    left: Mapping[Path, str] = field(default_factory=dict)

    @property
    def moved(self) -> tuple[Path, ...]:
        return tuple(sorted({*self.states, *(file for file, _, _ in self.pipeline.tensors)}))


def files_beside(folder: Path, taken: Collection[Path], anatomy: Anatomy, gauge: Gauge) -> Beside:
    """What a gauge does to the files of a folder other than those that are `taken`, the model's
    own. Raises InputError as `tree_of`.
    """
    if not gauge.elements:
        return Beside()
    pipeline = pipeline_of(folder, anatomy, gauge)
    states, left = {}, dict(pipeline.left)
    for file in tree_of(folder).files:
        if (
            file in taken
            or file in left
            or any(file.is_relative_to(place) for place in pipeline.own)
            or not holds_numbers(folder / file)
        ):
            continue
        left[file] = ""
        if any(fnmatch(file.name, pattern) for pattern in OPTIMIZERS):
            try:
                states[file] = moved_state(read_state(folder / file), anatomy, gauge)
                del left[file]
            except InputError as error:
                left[file] = (
                    str(error).removeprefix(f"{folder / file}: ").removeprefix("optimizer state: ")
                )
    return Beside(
        pipeline, states, {file: left[file] for file in sorted(left) if (folder / file).exists()}
    )


def holds_numbers(path: Path) -> bool:
    """Whether a file may hold values in the coordinates of a model."""
    if any(fnmatch(path.name, pattern) for pattern in NO_NUMBERS):
        return False
    if any(fnmatch(path.name.lower(), pattern) for pattern in NUMBERS):
        return True
    with open(path, "rb") as handle:
        start = handle.read(PROBED)
    return len(start.translate(None, CONTROL)) < len(start)


def numbers_beside(folder: Path, taken: Collection[str]) -> dict[Path, str]:
    """The files of an artifact's folder that may hold numbers, without those that are `taken`."""
    return {
        file: ""
        for file in tree_of(folder).files
        if str(file) not in taken and holds_numbers(folder / file)
    }


def require_none_left(
    folder: Path,
    left: Mapping[Path, str],
    remedy: str = "--leave-behind (leave_behind=True) makes the copy without them",
) -> None:
    """InputError naming the files that would stay in old coordinates, and the remedy."""
    if left:
        said = [f"{file} ({reason})" if reason else str(file) for file, reason in left.items()]
        more = f" and {len(said) - LISTED} more" if len(said) > LISTED else ""
        raise InputError(
            f"{folder}: not moved, but in the old coordinates: {', '.join(said[:LISTED])}{more}; "
            f"{remedy}"
        )
