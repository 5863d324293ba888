"""From a corpus to calibration.parquet: exactly what enters the model, one row per sequence."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.calibration.corpora import Content, corpus_named, digest_lines
from normgauge.calibration.inputs import (
    content_sha256,
    image_processor,
    image_side,
    picture,
    pixel_values,
    positions_of,
)
from normgauge.calibration.interfaces import MODALITIES, Interface, interface_of, maximum_length
from normgauge.calibration.settings import DEFAULT, Settings
from normgauge.calibration.token_ids import beginning, token_ids, token_source
from normgauge.errors import InputError
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

Rows = list[dict[str, Any]]

_TOKENS = frozenset({Content.TEXT, Content.MOLECULES, Content.TOKENS})
SUITABLE = {
    Interface.DECODER: _TOKENS,
    Interface.ENCODER: _TOKENS,
    Interface.ENCODER_DECODER: _TOKENS,
    Interface.SPEECH: frozenset({Content.TEXT, Content.NOISE}),
    Interface.IMAGE: frozenset({Content.IMAGES, Content.NOISE}),
    Interface.RECEPTOR: frozenset({Content.RECEPTORS}),
}

# 0 padding, 1 mask, 2 CLS
AMINO_ACIDS = {letter: number for number, letter in enumerate("ACDEFGHIKLMNPQRSTVWY", start=3)}
RECEPTOR_CLS = (2, 0, 0, 0)
# tokeniser class in SCEPTR's config.json -> the regions (chain, CDR) it reads; a region's
# compartment is its place, from 1
RECEPTOR_REGIONS = {
    "CdrTokeniser": (("A", 1), ("A", 2), ("A", 3), ("B", 1), ("B", 2), ("B", 3)),
    "AlphaCdrTokeniser": (("A", 1), ("A", 2), ("A", 3)),
    "BetaCdrTokeniser": (("B", 1), ("B", 2), ("B", 3)),
    "Cdr3Tokeniser": (("A", 3), ("B", 3)),
}


def prepare(
    entry: Mapping[str, Any],
    folder: str | os.PathLike[str],
    corpus_path: str | os.PathLike[str] | None,
    path: str | os.PathLike[str],
    *,
    config: Any,
    settings: Settings = DEFAULT,
    tokenizer_folder: str | os.PathLike[str] | None = None,
) -> None:
    """Write calibration.parquet (schema `calibration`) for one checkpoint.

    `entry`: the model table's entry (`modality`, `calibration`); `folder`: the checkpoint;
    `corpus_path`: the corpus file, None for the generated corpora; `config`: the model's config;
    `tokenizer_folder`: a folder to borrow the tokenizer from.

    Token models and Whisper get `sequences` rows of `length` ids. Pictures and receptors get as
    many rows as reach `sequences * length` token positions, since they have no common length.
    docs/calibration.md has the exact recipe.

    Metadata: input_kind, corpus, corpus_sha256, tokenizer_sha256, ids_sha256 (over the rows'
    sha256), sequences (rows), length, seed, bos (the setting) and bos_ids (the ids before a
    decoder-only model's window, joined by spaces). Raises InputError for an unknown model_type or
    corpus, a modality or corpus that does not suit the model, a length beyond the model's
    positions, a missing tokenizer or beginning-of-text id, ids beyond the vocabulary, and a corpus
    that is empty, short or another than the entry names.
    """
    sequences, length, seed = settings.sequences, settings.length, settings.seed
    if sequences < 1 or length < 1:
        raise InputError(
            f"calibration: sequences {sequences} and length {length} must both be at least 1"
        )
    interface = _checked_interface(entry, config, length)
    documents, metadata = _corpus(entry["calibration"], corpus_path)
    if interface is Interface.RECEPTOR:
        rows = _receptor_rows(documents, folder, sequences * length, seed)
    elif interface is Interface.IMAGE:
        rows = _image_rows(documents, folder, config, sequences * length, seed)
    else:
        source = token_source(interface, documents, folder, tokenizer_folder)
        begin = beginning(source, config, settings.bos) if interface is Interface.DECODER else ()
        ids = token_ids(source, entry, config, settings, begin)
        metadata |= {"tokenizer_sha256": source.sha256, "bos_ids": " ".join(map(str, begin))}
        rows = _token_rows(interface, ids, metadata["corpus"], seed)
    for number, row in enumerate(rows):
        row["sequence"] = number
        row["sha256"] = content_sha256(row, getattr(config, "num_channels", 3))
    metadata |= {
        "input_kind": rows[0]["kind"],
        "ids_sha256": digest_lines(row["sha256"] for row in rows),
        "sequences": str(len(rows)),
        "length": str(length),
        "seed": str(seed),
        "bos": str(settings.bos),
    }
    tables.write(path, "calibration", rows, metadata)


def check_interface(entry: Mapping[str, Any], config: Any) -> Interface:
    """What the model takes; InputError when the entry's modality or calibration is something
    else.
    """
    interface = interface_of(config)
    modality, name = entry["modality"], entry["calibration"]
    content = corpus_named(name).content
    if modality not in MODALITIES[interface]:
        raise InputError(
            f"modality {modality}: a {config.model_type} model takes {interface}; set modality to "
            f"{' or '.join(MODALITIES[interface])}"
        )
    if interface is Interface.IMAGE:
        for key in ("image_size", "patch_size"):
            image_side(config, key)
    if content not in SUITABLE[interface]:
        raise InputError(
            f"calibration {name}: holds {content}, but a {config.model_type} model takes "
            f"{interface}; choose another corpus"
        )
    return interface


def _checked_interface(entry: Mapping[str, Any], config: Any, length: int) -> Interface:
    interface = check_interface(entry, config)
    if interface not in (Interface.IMAGE, Interface.RECEPTOR):
        limit = maximum_length(config)
        if limit is not None and length > limit:
            raise InputError(
                f"calibration.length {length}: a {config.model_type} model of this config has "
                f"{limit} positions; lower it"
            )
    return interface


def _corpus(name: str, corpus_path: str | os.PathLike[str] | None) -> tuple[Rows, dict[str, str]]:
    corpus = corpus_named(name)
    if corpus.documents is None:
        return [], {
            "corpus": name,
            "corpus_sha256": "",
            "separator": "",
            "tokenizer_sha256": "",
            "bos_ids": "",
        }
    if corpus_path is None:
        raise InputError(f"calibration {name}: expected its corpus file; build it first")
    documents = tables.read(corpus_path, "corpus")
    metadata = read_metadata(corpus_path)
    if metadata.get("corpus") != name:
        raise InputError(
            f"{Path(corpus_path).name}: holds the corpus {metadata.get('corpus')}, expected "
            f"{name}; rebuild it"
        )
    if not any(document["text"] or document["payload"] for document in documents):
        raise InputError(f"{Path(corpus_path).name}: the corpus is empty; delete it and rerun")
    kept = {key: metadata[key] for key in ("corpus", "corpus_sha256", "separator")}
    return documents, kept | {"tokenizer_sha256": "", "bos_ids": ""}


def _row(
    kind: str,
    source: str,
    *,
    ids: np.ndarray | None = None,
    columns: int = 1,
    seed: int | None = None,
    payload: bytes | None = None,
):
    flat = None if ids is None else ids.reshape(-1).tolist()
    return {
        "kind": kind,
        "ids": flat,
        "columns": columns,
        "seed": seed,
        "source": source,
        "payload": payload,
    }


def _token_rows(interface: Interface, ids: np.ndarray, corpus: str, seed: int) -> Rows:
    if interface is Interface.SPEECH:
        seeds = _row_seeds(seed, len(ids))
        source = (
            "audio: Gaussian noise; decoder: "
            f"{'random ids' if corpus == 'random-noise' else corpus}"
        )
        return [
            _row("audio-noise", source, ids=row, seed=row_seed)
            for row, row_seed in zip(ids, seeds, strict=True)
        ]
    columns = ids.shape[2] if ids.ndim == 3 else 1
    return [_row("ids", corpus, ids=row, columns=columns) for row in ids]


def _row_seeds(seed: int, count: int) -> list[int]:
    """One independent generator seed per row."""
    return [
        int(value) for value in np.random.SeedSequence(seed).generate_state(count, dtype=np.uint32)
    ]


def _image_rows(
    documents: Rows, folder: str | os.PathLike[str], config: Any, positions: int, seed: int
) -> Rows:
    """Every picture whole, then seeded square crops of the pictures in turn, until the patches and
    class tokens reach `positions`.
    """
    if not documents:
        side = image_side(config)
        seeds = _row_seeds(seed, _images_needed(side, side, config, positions))
        return [
            _row("image-noise", "Gaussian pixels", columns=side, seed=row_seed)
            for row_seed in seeds
        ]
    processor = image_processor(config, folder)
    pixels = pixel_values(processor, picture(documents[0]["payload"], None), config)
    seeds = _row_seeds(seed, _images_needed(pixels.shape[-2], pixels.shape[-1], config, positions))
    rows = []
    for number, row_seed in enumerate(seeds):
        document = documents[number % len(documents)]
        crop = row_seed if number >= len(documents) else None
        source = f"{document['name']}, {'whole' if crop is None else 'crop'}"
        rows.append(_row("image", source, seed=crop, payload=document["payload"]))
    return rows


def _images_needed(height: int, width: int, config: Any, positions: int) -> int:
    return math.ceil(positions / positions_of(config, height, width))


def _receptor_rows(
    documents: Rows, folder: str | os.PathLike[str], positions: int, seed: int
) -> Rows:
    """Alpha and beta chains paired at random, each receptor a grid (token, position, compartment
    length, compartment).

    Receptors are drawn (chains without replacement) until their tokens reach `positions`.
    """
    regions = _receptor_regions(Path(folder) / "config.json")
    chains = {
        letter: [row for row in documents if row["name"].startswith(f"TR{letter}V")]
        for letter in "AB"
    }
    if not all(chains.values()):
        raise InputError("tcr: the corpus lacks alpha or beta chains; delete it and rerun")
    generator = np.random.default_rng(seed)
    rows: Rows = []
    reached = 0
    while reached < positions:
        orders = {letter: generator.permutation(len(chains[letter])) for letter in "AB"}
        for alpha, beta in zip(orders["A"], orders["B"], strict=False):
            pair = {"A": chains["A"][alpha], "B": chains["B"][beta]}
            grid = _receptor_grid(
                {letter: row["text"].split(" ") for letter, row in pair.items()}, regions
            )
            rows.append(
                _row(
                    "token-grid",
                    " ".join(row["name"] for row in pair.values()),
                    ids=grid,
                    columns=4,
                )
            )
            reached += len(grid)
            if reached >= positions:
                break
    return rows


def _receptor_regions(path: Path) -> tuple[tuple[str, int], ...]:
    try:
        kind = json.loads(path.read_text(encoding="utf-8"))["data"]["tokeniser"]["class"]
        return RECEPTOR_REGIONS[kind]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path.name}: expected data.tokeniser.class to be one of "
            f"{', '.join(RECEPTOR_REGIONS)} ({error!r}); fetch the checkpoint again"
        ) from error


def _receptor_grid(
    chains: Mapping[str, list[str]], regions: tuple[tuple[str, int], ...]
) -> np.ndarray:
    """int32 (positions, 4): CLS, then every residue of every region; positions count from 1 within
    a region.
    """
    grid = [RECEPTOR_CLS]
    for compartment, (letter, number) in enumerate(regions, start=1):
        residues = chains[letter][number - 1]
        grid += [
            (AMINO_ACIDS[residue], place, len(residues), compartment)
            for place, residue in enumerate(residues, start=1)
        ]
    return np.asarray(grid, dtype=np.int32)
