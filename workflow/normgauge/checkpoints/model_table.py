"""The model table as a whole: ids, entries against the schema, what a modality can be calibrated
on, and the revisions that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from normgauge.checkpoints.entry_checks import matching
from normgauge.checkpoints.fine_tuned import FineTunedSource
from normgauge.checkpoints.sources import IDENTIFIER, near, parse_source
from normgauge.errors import InputError

SCHEMA_PATH = Path(__file__).resolve().parents[2] / "schemas" / "models.schema.yaml"

# What each modality can be calibrated on: token ids for text and tokens, pixels for image, a
# spectrogram for audio.
CALIBRATIONS: dict[str, tuple[str, ...]] = {
    "text": ("kjv", "python-docs", "python-code", "smiles", "random-tokens"),
    "tokens": ("tcr", "smiles", "random-tokens"),
    "image": ("images", "random-noise"),
    # a text corpus feeds the decoder
    "audio": ("random-noise", "kjv", "python-docs", "python-code"),
}


def expand(models: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Every (model id, revision) of the table, in its order; each is one folder
    `results/{model}/{revision}/`.
    """
    return [
        (model_id, revision)
        for model_id, entry in models.items()
        for revision in parse_source(model_id, entry).revisions
    ]


def validate_models(models: Mapping[str, Any]) -> None:
    """Check the whole model table: ids, sources, every key against the schema, and what the schema
    cannot say.

    Raises InputError that names the model and the key.
    """
    if not isinstance(models, Mapping) or not models:
        raise InputError(
            "models: expected a mapping from model id to its entry; see config/models.yaml"
        )
    validator = Draft202012Validator(yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8")))
    for model_id, entry in models.items():
        matching(
            f"models.{model_id}",
            model_id,
            IDENTIFIER,
            "a model id of letters, digits, `.`, `_` and `-` (quote numbers)",
        )
        parse_source(model_id, entry)
        found = list(validator.iter_errors({model_id: entry}))
        # A misspelt key is missing under its right name as well; the misspelling says more.
        error = best_match(
            [error for error in found if error.validator == "additionalProperties"] or found
        )
        if error is not None:
            place = ".".join(map(str, ("models", *error.absolute_path)))
            raise InputError(f"{place}: {_explanation(error)}")
        _check_calibration(model_id, entry)
        _check_tokenizer(model_id, entry, models)
        _check_base(model_id, entry, models)


def _explanation(error: Any) -> str:
    """One line in the table's own terms for a schema violation."""
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = next(key for key in error.instance if key not in known)
        return f"unknown key `{unknown}`; known here: {', '.join(known)}{near(str(unknown), known)}"
    if error.validator == "enum":
        return f"{error.instance!r} is not one of {', '.join(map(str, error.validator_value))}"
    if error.validator == "propertyNames":
        return f"{error.message}; known here: {', '.join(error.validator_value.get('enum', []))}"
    return error.message


def _check_calibration(model_id: str, entry: Mapping[str, Any]) -> None:
    modality, calibration = entry["modality"], entry["calibration"]
    if calibration not in CALIBRATIONS[modality]:
        raise InputError(
            f"models.{model_id}.calibration: {calibration} cannot feed a model of modality "
            f"{modality}; "
            f"choose one of {', '.join(CALIBRATIONS[modality])}"
        )


def _check_tokenizer(model_id: str, entry: Mapping[str, Any], models: Mapping[str, Any]) -> None:
    lender = entry.get("tokenizer")
    if lender is None:
        return
    where = f"models.{model_id}.tokenizer"
    if lender not in models:
        raise InputError(
            f"{where}: no model {lender} in the table to borrow the tokenizer "
            f"from{near(lender, models)}"
        )
    if len(parse_source(lender, models[lender]).revisions) > 1:
        raise InputError(
            f"{where}: {lender} has several revisions, so its tokenizer is ambiguous; borrow from "
            "a model with one"
        )


def _check_base(model_id: str, entry: Mapping[str, Any], models: Mapping[str, Any]) -> None:
    """That what a run starts from is in the table, and does not start from the run itself."""
    where, seen = f"models.{model_id}.source.fine_tuned.from", [model_id]
    source = parse_source(model_id, entry)
    while isinstance(source, FineTunedSource) and source.base:
        base, revision = source.base.split("@")
        if base not in models:
            raise InputError(f"{where}: no model {base} in the table{near(base, models)}")
        if base in seen:
            raise InputError(f"{where}: {' from '.join([*seen, base])} has no beginning")
        seen.append(base)
        source = parse_source(base, models[base])
        if revision not in source.revisions:
            raise InputError(
                f"{where}: model {base} has no revision {revision}; it has "
                f"{', '.join(source.revisions)}"
            )
