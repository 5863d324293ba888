"""Arguments that several verbs share, and the numbers that they take."""

from __future__ import annotations

import argparse
import json
from typing import Any

MODEL = "a checkpoint folder, a .gguf file, or a hub id (owner/name)"
TOKENS = (
    "what enters the model: random token ids (the default, which needs no network), a corpus that "
    "is fetched once (kjv: the "
    'King James Bible; tcr: T-cell receptors; ...), or a .txt or .jsonl file (one {"text": ...} a '
    "line)"
)


def add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", default="random", metavar="random|kjv|FILE", help=TOKENS)
    parser.add_argument(
        "--sequences",
        type=positive,
        help="how many; unless given, as many as make ten positions per coordinate",
    )
    parser.add_argument(
        "--length",
        type=positive,
        help="tokens of each; unless given 256, or the model's positions if fewer",
    )
    parser.add_argument("--seed", type=count, default=0, help="of what is drawn (0)")


def add_settings(parser: argparse.ArgumentParser) -> None:
    text = "a key laid over the stored config.json, such as model_type=bert; repeatable"
    parser.add_argument("--config", action="append", type=setting, metavar="KEY=VALUE", help=text)


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE; the value is JSON where it reads as such, else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def add_output(parser: argparse.ArgumentParser, folder: bool = True) -> None:
    if folder:
        parser.add_argument(
            "--out",
            metavar="DIR",
            help="a new folder for the tables; what exists is kept, unless the same run wrote it",
        )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on stdout instead of the summary"
    )


def count(text: str) -> int:
    """A whole number from 0; argparse turns the ValueError into its own line."""
    if (value := int(text)) < 0:
        raise ValueError
    return value


def positive(text: str) -> int:
    """A whole number from 1."""
    if (value := int(text)) < 1:
        raise ValueError
    return value
