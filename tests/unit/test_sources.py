"""The model table: every kind of source, every mistake, and the shipped table itself."""

import copy
import os
from pathlib import Path

import pytest
import yaml

from normgauge.checkpoints.model_table import CALIBRATIONS, SCHEMA_PATH, expand, validate_models
from normgauge.checkpoints.sources import (
    HubSource,
    LocalSource,
    PackageSource,
    RandomInitSource,
    TrainedSource,
    parse_source,
)
from normgauge.errors import InputError

COMMIT, DIGEST = "0123456789abcdef" * 2 + "01234567", "ab" * 32
PACKAGE = {"package": "name==1.2.3", "sha256": DIGEST, "path": "folder/in/the/wheel"}
TABLE = Path(__file__).resolve().parents[2] / "config" / "models.yaml"


def parse(source):
    return parse_source("mymodel", {"source": source})


@pytest.mark.parametrize(
    ("source", "parsed", "revisions", "record"),
    [
        (
            PACKAGE,
            PackageSource("name", "1.2.3", DIGEST, ("folder/in/the/wheel",)),
            ("1.2.3",),
            {"package": "name==1.2.3", "sha256": DIGEST, "paths": ["folder/in/the/wheel"]},
        ),
        (
            {"package": "name==1.2.3", "sha256": DIGEST, "paths": ["a/config.json", "a/model.bin"]},
            PackageSource("name", "1.2.3", DIGEST, ("a/config.json", "a/model.bin")),
            ("1.2.3",),
            {"package": "name==1.2.3", "sha256": DIGEST, "paths": ["a/config.json", "a/model.bin"]},
        ),
        (
            {"hub": "org/name", "revision": COMMIT},
            HubSource("org/name", (COMMIT,)),
            (COMMIT,),
            {"hub": "org/name", "revision": COMMIT},
        ),
        (
            {"hub": "org/name", "revision": [COMMIT, "f" * 40]},
            HubSource("org/name", (COMMIT, "f" * 40)),
            (COMMIT, "f" * 40),
            {"hub": "org/name", "revision": COMMIT},
        ),
        (
            {"hub": "org/name", "revision": COMMIT, "sha256": {"config.json": DIGEST}},
            HubSource("org/name", (COMMIT,), (("config.json", DIGEST),)),
            (COMMIT,),
            {"hub": "org/name", "revision": COMMIT, "sha256": {"config.json": DIGEST}},
        ),
        (
            {"path": "/data/folder"},
            LocalSource("/data/folder"),
            ("local",),
            {"path": "folder", "revision": "local"},
        ),
        (
            {"path": "~/folder"},
            LocalSource(os.path.expanduser("~/folder")),
            ("local",),
            {"path": "folder", "revision": "local"},
        ),
        (
            {"path": "folder", "revision": "v2"},
            LocalSource("folder", "v2"),
            ("v2",),
            {"path": "folder", "revision": "v2"},
        ),
        (
            {"random_init": {"config": "shapes/file.json", "seed": 42}},
            RandomInitSource("shapes/file.json", (42,)),
            ("seed42",),
            {"random_init": {"config": "file.json", "seed": 42}},
        ),
        (
            {"trained": {"recipe": "gpt2-nano", "seed": [42, 5042]}},
            TrainedSource("gpt2-nano", (42, 5042)),
            ("seed42", "seed5042"),
            {"trained": {"recipe": "gpt2-nano", "seed": 42}},
        ),
    ],
)
def test_every_kind_of_source(source, parsed, revisions, record):
    found = parse(source)
    assert found == parsed
    assert found.revisions == revisions
    assert found.record(revisions[0]) == record


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "models.mymodel.source: expected a mapping with one of hub, package"),
        ("name==1.2.3", "models.mymodel.source: expected a mapping with one of hub, package"),
        ({}, "found only nothing"),
        ({"wheel": "name"}, "found only wheel"),
        ({**PACKAGE, "hub": "org/name"}, "found hub and package"),
        ({"path": "/folder", "trained": {}}, "found path and trained"),
        (
            {**PACKAGE, "version": "1"},
            "source.version: unknown key; known here: package, sha256, path, paths",
        ),
        ({"package": "name==1.2.3", "path": "x"}, "source: the key `sha256` is missing"),
        (
            {**PACKAGE, "package": "name"},
            "source.package: expected `name==version` with an exact version, found 'name'",
        ),
        ({**PACKAGE, "package": "name>=1.2"}, "expected `name==version`"),
        ({**PACKAGE, "package": "name==1.*"}, "expected `name==version`"),
        ({**PACKAGE, "package": "--option==1"}, "expected `name==version`"),
        (
            {**PACKAGE, "sha256": DIGEST[:-1]},
            "source.sha256: expected the wheel's sha256, 64 lower-case hex digits",
        ),
        ({**PACKAGE, "sha256": DIGEST.upper()}, "64 lower-case hex digits"),
        ({**PACKAGE, "sha256": 12}, "64 lower-case hex digits, found 12"),
        ({**PACKAGE, "paths": ["x"]}, "expected either `path`"),
        ({"package": "name==1.2.3", "sha256": DIGEST}, "expected either `path`"),
        (
            {"package": "name==1.2.3", "sha256": DIGEST, "paths": []},
            "source.paths: expected a list",
        ),
        (
            {"package": "name==1.2.3", "sha256": DIGEST, "paths": "x"},
            "source.paths: expected a list",
        ),
        (
            {"package": "name==1.2.3", "sha256": DIGEST, "paths": ["x", "x"]},
            "source.paths: 'x' is listed twice",
        ),
        ({**PACKAGE, "path": "/etc"}, "relative and without `..`"),
        ({**PACKAGE, "path": "a/../../b"}, "relative and without `..`"),
        ({**PACKAGE, "path": "a\\b"}, "relative and without `..`"),
        ({**PACKAGE, "path": "."}, "relative and without `..`"),
        (
            {"hub": "name", "revision": COMMIT},
            "source.hub: expected a repository `organisation/name`, found 'name'",
        ),
        ({"hub": "org/name"}, "the key `revision` is missing"),
        (
            {"hub": "org/name", "revision": "main"},
            "source.revision: expected a commit of 40 lower-case hex digits",
        ),
        ({"hub": "org/name", "revision": COMMIT[:39]}, "expected a commit of 40"),
        ({"hub": "org/name", "revision": [COMMIT, "main"]}, "found 'main'"),
        ({"hub": "org/name", "revision": [COMMIT, COMMIT]}, "is listed twice"),
        (
            {"hub": "org/name", "revision": COMMIT, "sha256": DIGEST},
            "source.sha256: expected a mapping",
        ),
        (
            {"hub": "org/name", "revision": COMMIT, "sha256": {"config.json": "1"}},
            "source.sha256.config.json: expected 64",
        ),
        (
            {"hub": "org/name", "revision": [COMMIT, "f" * 40], "sha256": {"a": DIGEST}},
            "pins belong to one revision",
        ),
        ({"path": ""}, "source.path: expected text"),
        ({"path": "/folder", "revision": "a/b"}, "source.revision: expected a folder name"),
        (
            {"path": "/folder", "revision": 2},
            "source.revision: expected a folder name (quote numbers), found 2",
        ),
        ({"random_init": "file.json"}, "source.random_init: expected a mapping"),
        ({"random_init": {"config": "file.json"}}, "source.random_init: the key `seed` is missing"),
        (
            {"random_init": {"config": "file.json", "seed": -1}},
            "random_init.seed: expected a whole number from 0 up",
        ),
        ({"random_init": {"config": "file.json", "seed": "42"}}, "found '42'"),
        ({"random_init": {"config": "file.json", "seed": True}}, "found True"),
        ({"random_init": {"config": "file.json", "seed": []}}, "random_init.seed: expected"),
        ({"trained": {"recipe": "gpt2-nano", "seed": [1, 1]}}, "trained.seed: 1 is listed twice"),
        ({"trained": {"recipe": "gpt2-nano", "seed": 1, "steps": 2}}, "trained.steps: unknown key"),
    ],
)
def test_every_mistake_is_named(source, message):
    with pytest.raises(InputError) as caught:
        parse(source)
    assert message in str(caught.value)
    assert str(caught.value).startswith("models.mymodel.source")


@pytest.fixture
def table():
    return yaml.safe_load(TABLE.read_text())["models"]


def test_the_shipped_table_is_valid_and_complete(table):
    validate_models(table)
    assert len([model for model in table if model.startswith("sceptr-")]) == 16
    pairs = expand(table)
    assert len(set(pairs)) == len(pairs) == 83
    assert [pair for pair in pairs if pair[0] == "llama-nano"] == [
        ("llama-nano", f"seed{seed}") for seed in (42, 5042, 10042)
    ]
    assert ("smollm2-135m", "0.1.2") in pairs


def test_the_example_of_the_manual_is_valid(table):
    table["mymodel"] = {"source": PACKAGE, "modality": "text", "calibration": "kjv"}
    table["other"] = {
        "source": {"path": "folder"},
        "modality": "text",
        "calibration": "random-tokens",
        "tokenizer": "minilm-l6",
        "config": {"model_type": "bert"},
        "capture": {
            "forward_dtypes": {"float32": ["residual", "taps"], "float64": ["schur"]},
            "accumulation": "tsqr64",
            "shards": 4,
        },
    }
    validate_models(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"modality": "video"},
            "models.mymodel.modality: 'video' is not one of text, tokens, image, audio",
        ),
        ({"calibration": "bible"}, "models.mymodel.calibration: 'bible' is not one of kjv"),
        (
            {"calibration": "images"},
            "models.mymodel.calibration: images cannot feed a model of modality text",
        ),
        ({"modality": None}, "models.mymodel.modality: None is not one of"),
        (
            {"modalities": "text"},
            "models.mymodel: unknown key `modalities`; known here: source, modality",
        ),
        ({"licence": 1}, "models.mymodel.licence: 1 is not of type 'string'"),
        (
            {"tokenizer": "minilm"},
            "models.mymodel.tokenizer: no model minilm in the table to borrow the tokenizer from; "
            "did you mean minilm-l6",
        ),
        ({"tokenizer": "llama-nano"}, "llama-nano has several revisions"),
        (
            {"capture": {"forward_dtypes": {"fp32": ["residual"]}}},
            "models.mymodel.capture.forward_dtypes: 'fp32' is not one of",
        ),
        (
            {"capture": {"forward_dtypes": {"float32": ["all"]}}},
            "models.mymodel.capture.forward_dtypes.float32.0: 'all' is not one of residual",
        ),
        (
            {"capture": {"shard": 2}},
            "models.mymodel.capture: unknown key `shard`; known here: forward_dtypes",
        ),
        (
            {"capture": {"shards": 0}},
            "models.mymodel.capture.shards: 0 is less than the minimum of 1",
        ),
        ({"source": {"path": "/folder", "pin": 1}}, "models.mymodel.source.pin: unknown key"),
    ],
)
def test_every_mistake_in_an_entry_is_named(table, change, message):
    table["mymodel"] = {
        "source": {"path": "/folder"},
        "modality": "text",
        "calibration": "kjv",
        **change,
    }
    with pytest.raises(InputError) as caught:
        validate_models(table)
    assert message in str(caught.value)


def test_a_misspelt_key_is_named_before_the_missing_one(table):
    with pytest.raises(
        InputError, match=r"models\.mymodel: unknown key `calibraton`; .*did you mean calibration"
    ):
        validate_models(
            {"mymodel": {"source": {"path": "/folder"}, "modality": "text", "calibraton": "kjv"}}
        )


def test_missing_keys_and_bad_ids_are_named(table):
    with pytest.raises(InputError, match=r"models\.mymodel: 'calibration' is a required property"):
        validate_models({"mymodel": {"source": {"path": "/folder"}, "modality": "text"}})
    for bad in ("a/b", "", ".hidden", 7, "a b"):
        with pytest.raises(InputError, match="a model id of letters"):
            validate_models({bad: table["minilm-l6"]})
    for nothing in ({}, None, ["minilm-l6"]):
        with pytest.raises(InputError, match="expected a mapping from model id"):
            validate_models(nothing)
    with pytest.raises(InputError, match=r"models\.mymodel\.source"):
        validate_models({"mymodel": None})


def test_schema_refuses_what_the_parser_refuses(table):
    """Snakemake checks the schema alone, so it must not let pass a source that the parser
    refuses.
    """
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(yaml.safe_load(SCHEMA_PATH.read_text()))
    assert validator.is_valid(table)
    for source in (
        {},
        {**PACKAGE, "hub": "org/name"},
        {"hub": "org/name", "revision": "main"},
        {**PACKAGE, "sha256": "1"},
        {"path": "x", "a": 1},
    ):
        changed = copy.deepcopy(table)
        changed["minilm-l6"]["source"] = source
        assert not validator.is_valid(changed)


def test_calibrations_and_schema_name_the_same(table):
    properties = yaml.safe_load(SCHEMA_PATH.read_text())["$defs"]["model"]["properties"]
    assert set(CALIBRATIONS) == set(properties["modality"]["enum"])
    assert {name for names in CALIBRATIONS.values() for name in names} == set(
        properties["calibration"]["enum"]
    )
