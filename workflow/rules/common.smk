import json
import os
import re
import sys
from functools import cache
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

WORKFLOW = Path(workflow.basedir) / "workflow"
OWN_FOLDERS = {"packages", "corpora", "tables", "redundancy", "compare"}  # in results/, beside those of the models

# Scripts, here and in jobs on a cluster, import the library from this folder, not from an installation.
sys.path.insert(0, str(WORKFLOW))
os.environ.update(
    PYTHONPATH=os.pathsep.join(dict.fromkeys([str(WORKFLOW), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
)
# torch and numpy bring a thread pool each. Their threads spin while they wait, and take the cores from one another: capture ran at half speed.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

from normgauge.calibration.corpora import CORPORA, fetch_needed
from normgauge.checkpoints.layout import checkpoint_files
from normgauge.checkpoints.sources import (
    LocalSource,
    PackageSource,
    RandomInitSource,
    TrainedSource,
    expand,
    near,
    parse_source,
    validate_models,
)
from normgauge.errors import InputError
from normgauge.provenance import code_hash
from normgauge.training.recipes import recipe_named

# --- the configuration and the targets, checked before anything is planned


def fail(message):
    """End with one line on stderr: the configuration or a target cannot be used."""
    sys.exit("error: " + " ".join(str(message).split()))


def check_config():
    schema = yaml.safe_load((WORKFLOW / "schemas/config.schema.yaml").read_text())
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
    for model, entry in config["models"].items():
        if model in OWN_FOLDERS:
            fail(f"models.{model}: results/{model} is a folder of the pipeline's own; choose another id")
        check_residual(f"models.{model}.capture", entry.get("capture", {}))


def check_residual(where, settings):
    """Fail unless the group `residual` is captured in some arithmetic: every profile starts at the embedding."""
    groups = settings.get("forward_dtypes")
    if groups is not None and not any("residual" in names for names in groups.values()):
        fail(f"{where}.forward_dtypes: the group residual is in none of {', '.join(groups)}; add it to one")


def check_checkpoint(model, revision, where):
    """Fail, with near matches, when the model table has no such model or revision."""
    if model not in MODELS:
        fail(f"{where}: no model {model} in config/models.yaml or --configfile{near(model, MODELS)}")
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


def compared_pair(entry, number):
    """(model, revision) of both sides of an entry of comparison.pairs."""
    where = f"comparison.pairs.{number}"
    sides = [listed_checkpoints(entry[side], f"{where}.{side}") for side in ("a", "b")]
    for side, found in zip(("a", "b"), sides, strict=True):
        if len(found) > 1:
            fail(f"{where}.{side}: {entry[side]} has {len(found)} revisions; name one as model@revision")
    if sides[0] == sides[1]:
        fail(f"{where}: a and b are the same checkpoint, {entry['a']}; name two")
    return sides[0][0], sides[1][0]


def pair_name(first, second):
    return "__".join(f"{model}@{revision}" for model, revision in (first, second))


def models_with(kind):
    return {model for model, source in SOURCES.items() if isinstance(source, kind)}


check_config()

MODELS = config["models"]
SOURCES = {model: parse_source(model, entry) for model, entry in MODELS.items()}
TRAINED = models_with(TrainedSource)
for model in sorted(TRAINED):
    try:
        recipe_named(SOURCES[model].recipe)
    except InputError as error:
        fail(f"models.{model}.source.trained: {error}")
RANDOM = models_with(RandomInitSource)
STUDY = [pair for item in config["study"]["models"] for pair in listed_checkpoints(item, "study.models")]
RECOVERED = [pair for item in config["recovery"]["models"] for pair in listed_checkpoints(item, "recovery.models")]
SECOND_ROUTE = [
    pair for item in config["recovery"]["second_route"] for pair in listed_checkpoints(item, "recovery.second_route") if pair in RECOVERED
]
# what is measured -> the checkpoints of which it is
GAUGED = {
    kind: [pair for item in config["gauge"][key] for pair in listed_checkpoints(item, f"gauge.{key}")]
    for kind, key in (("equivalence", "models"), ("recovery", "recovered"), ("audit", "audited"), ("transport", "audited"))
}
# (model, revision) -> the checkpoints of its shape that it is matched with, as `model@revision`
ALIGNED = {
    listed_checkpoints(first, "gauge.aligned")[0]: ["@".join(pair) for item in others for pair in listed_checkpoints(item, "gauge.aligned")]
    for first, *others in config["gauge"]["aligned"]
}
if len(ALIGNED) < len(config["gauge"]["aligned"]):
    fail("gauge.aligned: two lists begin with the same checkpoint; join them into one")
GAUGED["alignment"] = list(ALIGNED)
GAUGED["holonomy"] = [pair for pair, others in ALIGNED.items() if len(others) > 1]  # a cycle needs three
COUNTED = [pair for item in config["redundancy"]["models"] for pair in listed_checkpoints(item, "redundancy.models")]
COMPARED_PAIRS = {pair_name(*compared_pair(entry, number)): entry for number, entry in enumerate(config["comparison"]["pairs"])}
TABLES = os.path.join("results/tables", config["study"]["name"]).rstrip("/")
FIGURES = os.path.join("figures", config["study"]["name"]).rstrip("/")

for target in REQUESTED:
    match target.split("/"):
        case ["results", model, revision, *_] if model not in OWN_FOLDERS:
            check_checkpoint(model, revision, target)

# (name, version) of every wheel -> its sha256
WHEELS = {(source.name, source.version): source.sha256 for source in SOURCES.values() if isinstance(source, PackageSource)} | {
    (name, version): sha256 for name, version, sha256 in filter(None, map(fetch_needed, CORPORA))
}
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


# --- settings of one model


def entry_part(*keys):
    """A params function for these keys of the model's entry: the ones that a rule depends on."""

    def part(wildcards):
        entry = MODELS[wildcards.model]
        return {key: entry[key] for key in keys if key in entry}

    return part


def capture_settings(wildcards):
    """The capture section of the configuration, with what the model's entry overrides."""
    return config["capture"] | MODELS[wildcards.model].get("capture", {})


def capture_option(key):
    """A params function that looks `key` up in the model's capture settings."""

    def option(wildcards):
        return capture_settings(wildcards)[key]

    return option


def calibration_option(key):
    """A params function that looks `key` up in the calibration settings, which a model's `capture:` may override too."""

    def option(wildcards):
        return (config["calibration"] | MODELS[wildcards.model].get("capture", {}))[key]

    return option


def captured_groups(wildcards):
    """Forward dtype -> groups of sites measured with it, of those that measure any."""
    return {forward_dtype: groups for forward_dtype, groups in capture_settings(wildcards)["forward_dtypes"].items() if groups}


# --- inputs


def wheel_path(pin):
    return f"results/packages/{pin[0]}-{pin[1]}.whl" if pin else []


def checkpoint_wheel(wildcards):
    source = SOURCES[wildcards.model]
    return wheel_path((source.name, source.version)) if isinstance(source, PackageSource) else []


def corpus_wheel(wildcards):
    return wheel_path(fetch_needed(wildcards.corpus))


def local_files(wildcards):
    """The user's files that a checkpoint is made from: the folder of a path source, the configuration of a random initialisation."""
    source = SOURCES[wildcards.model]
    where = f"models.{wildcards.model}.source"
    if isinstance(source, RandomInitSource):
        if not Path(source.config).is_file():
            fail(f"{where}: {source.config} is missing; give an existing configuration file")
        return [source.config]
    if isinstance(source, LocalSource):
        folder = Path(source.path)
        if not folder.is_dir():
            fail(f"{where}: {folder} is missing; give an existing folder")
        try:
            names = checkpoint_files([file.name for file in folder.iterdir()], f"{where}: {folder}")
        except InputError as error:
            fail(error)
        for name in names:
            if not (folder / name).is_file():
                fail(f"{where}: {folder / name} is {'a folder' if (folder / name).is_dir() else 'a link to nothing'}; expected a file")
        return [str(folder / name) for name in names]
    return []


def corpus_path(name):
    return f"results/corpora/{name}.parquet" if name in BUILT_CORPORA else []


def calibration_corpus(wildcards):
    return corpus_path(MODELS[wildcards.model]["calibration"])


def tokenizer_checkpoint(wildcards):
    """The checkpoint folder of the model whose tokenizer is borrowed, if any."""
    lender = MODELS[wildcards.model].get("tokenizer")
    return f"results/{lender}/{SOURCES[lender].revisions[0]}/checkpoint" if lender else []


def moment_folders(wildcards):
    shards = capture_option("shards")(wildcards)
    return [f"results/{wildcards.model}/{wildcards.revision}/moments/{shard}-of-{shards}" for shard in range(shards)]


def study_files(*kinds):
    """The files of every checkpoint of the study that a table of these kinds is made from; random initialisations have no twins."""
    return [
        f"results/{model}/{revision}/{name}"
        for model, revision in STUDY
        for name in (
            "checkpoint.json",
            *(f"{kind}.parquet" for kind in kinds),
            *(f"reinitialised/{kind}.parquet" for kind in kinds if model not in RANDOM),
        )
    ]


def measured_files(kind):
    """This file of every checkpoint of the study."""
    return [f"results/{model}/{revision}/{kind}.parquet" for model, revision in STUDY]


def twin_files(kind):
    """This file of the re-initialised twins of every checkpoint of the study that has them."""
    return [f"results/{model}/{revision}/reinitialised/{kind}.parquet" for model, revision in STUDY if model not in RANDOM]


def recovery_files(kind, checkpoints=RECOVERED):
    """This file of every checkpoint whose weights are recovered, or of those given."""
    return [f"results/{model}/{revision}/recovery/{kind}.parquet" for model, revision in checkpoints]


def gauge_files(kind):
    """This file of every checkpoint of which it is measured."""
    return [f"results/{model}/{revision}/gauge/{kind}.parquet" for model, revision in GAUGED[kind]]


def aligned_checkpoints(wildcards):
    names = ALIGNED.get((wildcards.model, wildcards.revision), [])
    return [f"results/{name.replace('@', '/')}/checkpoint" for name in names]


def aligned_configs(wildcards):
    """By name of the other checkpoints, what their entries lay over the stored config."""
    return {name: MODELS[name.split("@")[0]].get("config") for name in ALIGNED.get((wildcards.model, wildcards.revision), [])}


def entry_config(side):
    """A params function: the configuration keys that are laid over one side's own."""

    def part(wildcards):
        return {key: value for key, value in MODELS[wildcards[f"model_{side}"]].items() if key == "config"}

    return part


def declared_probe(wildcards):
    """The probe set of a pair's confirmatory tests, if the configuration names one."""
    sides = [(wildcards.model_a, wildcards.revision_a), (wildcards.model_b, wildcards.revision_b)]
    return COMPARED_PAIRS.get(pair_name(*sides), {}).get("probe")


def counted_names():
    """What a counted checkpoint is called: its model id, with the revision where there are several of it."""
    models = [model for model, _ in COUNTED]
    return [model if models.count(model) == 1 else f"{model}@{revision}" for model, revision in COUNTED]


# --- resources and code


def largest_megabytes(path):
    return max((file.stat().st_size for file in Path(path).rglob("*") if file.is_file()), default=0) // 1_000_000


def acquired_memory(wildcards, input, attempt):
    """Megabytes: compressed, often 8-bit weights as float32 twice, or fresh float32 weights thrice; for a hub's, those of a billion parameters in half precision."""
    if isinstance(SOURCES[wildcards.model], RandomInitSource):
        return attempt * (1500 + 12 * rough_parameters(Path(input[0])) // 1_000_000)
    largest = max((Path(path).stat().st_size // 1_000_000 for path in input), default=0)
    return attempt * (1500 + 10 * largest if largest else 8000)


def rough_parameters(path):
    """Of a transformer with the configuration in this file, from above: two token tables, and sixteen squares of the width per block.

    A field that is absent counts as in a base-sized model. 0 for a file that is no configuration: the job itself refuses it in one line.
    """
    try:
        settings = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return 0

    def setting(usual, *names):
        return next((settings[name] for name in names if isinstance(settings.get(name), int) and settings[name] > 0), usual)

    width = setting(768, "hidden_size", "n_embd", "d_model")
    blocks = setting(12, "num_hidden_layers", "n_layer", "num_layers", "encoder_layers")
    return width * (2 * setting(50_000, "vocab_size") + 16 * width * blocks)


def model_memory(*forward_dtypes):
    """Megabytes of a job that runs a checkpoint in these arithmetics: weights, the stored ones beside them, and accumulators.

    Somewhat above what was measured (max_rss in logs/benchmarks): what is declared in excess keeps other jobs from running beside.
    """

    def memory(wildcards, input, attempt):
        parameters = json.loads(Path(input.manifest).read_text())["parameters"]
        return attempt * (1500 + (26 if "float64" in forward_dtypes else 10) * parameters // 1_000_000)

    return memory


def moments_memory(wildcards, input, attempt):
    """Megabytes: the moments of one site at a time, a few matrices of its size."""
    return attempt * (1500 + 8 * max(map(largest_megabytes, input.moments)))


def comparison_memory(wildcards, input, attempt):
    """Megabytes: one block of both sides in float64, and a few matrices over pairs of its units."""
    parameters = max(json.loads(Path(path).read_text())["parameters"] for path in (input.manifest_a, input.manifest_b))
    return attempt * (3000 + 8 * parameters // 1_000_000)


def solver_memory(wildcards, input, attempt):
    """Megabytes: a design and its factors, and what is known of the largest map, the readout's logits as a rule; their columns are read in parts."""
    return attempt * (1500 + 2 * largest_megabytes(input.observations))


@cache
def script_hash(script):
    return code_hash(WORKFLOW / "scripts" / script)


def code_of(script):
    """A params function: hash of a script and of every library module it imports, so that an edited module reruns exactly its dependants.

    Scripts that a plan does not need are not read.
    """

    def part(wildcards):
        return script_hash(script)

    return part
