# The runs of an entry `fine_tuned` of the model table, in one job; each revision is a copy of a kept step.


rule fine_tune:
    input:
        base=base_file("checkpoint"),
        calibration=base_calibration,
        corpora=tuned_corpora,
    output:
        directory("results/{model}/runs"),
    log:
        "logs/fine_tune/{model}.log",
    benchmark:
        "logs/benchmarks/fine_tune/{model}.tsv"
    wildcard_constraints:
        model=alternatives(TUNED),
    # Long, and others wait for it.
    priority: 2
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=1440,
    params:
        code=code_of("fine_tune.py"),
        entry=entry_part("source"),
        config=base_config,
        probes=config["trajectories"]["probes"],
    script:
        "../scripts/fine_tune.py"


rule keep_checkpoint:
    input:
        "results/{model}/runs",
    output:
        checkpoint=directory("results/{model}/{revision}/checkpoint"),
        manifest="results/{model}/{revision}/checkpoint.json",
    log:
        "logs/keep_checkpoint/{model}/{revision}.log",
    wildcard_constraints:
        model=alternatives(TUNED),
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        code=code_of("keep_checkpoint.py"),
        entry=entry_part("source", "modality", "calibration", "config", "objective", "licence"),
    script:
        "../scripts/keep_checkpoint.py"


# --- merging and resumed training


TRACED = config["trajectories"]
MERGED = [
    tuple(
        traced_checkpoint(pair[side], f"trajectories.merging.pairs.{number}.{side}")
        for side in ("first", "second")
    )
    for number, pair in enumerate(TRACED["merging"]["pairs"])
]
AVERAGED = [
    tuple(
        traced_checkpoint(pair[side], f"trajectories.averaging.pairs.{number}.{side}")
        for side in ("first", "second")
    )
    for number, pair in enumerate(TRACED["averaging"]["pairs"])
]
AVERAGED_CORPORA = dict.fromkeys([TRACED["averaging"]["tokens"], *TRACED["averaging"]["texts"]])
RESUMED = [
    traced_checkpoint(name, "trajectories.resuming.models") for name in TRACED["resuming"]["models"]
]
FOLLOWED = TRACED["runs"]
for model in FOLLOWED:
    if model not in TUNED or SOURCES[model].gauge is None or not SOURCES[model].match_every:
        fail(
            f"trajectories.runs: {model} is no entry fine_tuned with a gauge and match_every{near(model, TUNED)}"
        )
APART = [traced_checkpoint(name, "trajectories.apart") for name in TRACED["apart"]]
FOLLOWED_TABLES = [
    "trajectory_transport",
    "trajectory_pairs",
    "trajectory_cycles",
    "transport_trust",
    "endpoint_budget",
]
TRAJECTORY_TABLES = [
    *(FOLLOWED_TABLES if FOLLOWED else []),
    *(["natural_alignment"] if APART else []),
    *(["merge_barriers"] if MERGED else []),
    *(["aligned_merges"] if AVERAGED else []),
    *(["resumed_training"] if RESUMED else []),
]
TRAJECTORY_TABLE_TARGETS = [
    f"{TABLES}/{name}.{suffix}" for name in TRAJECTORY_TABLES for suffix in ("parquet", "csv")
]
# figure -> the table that it is drawn from, and its name in the report
TRAJECTORY_FIGURES = {
    "trajectory_transport": ("trajectory_transport", "Where transport breaks"),
    "transport_trust": ("trajectory_transport", "Which chains to trust"),
    "trajectory_pairs": ("trajectory_pairs", "Transport between runs"),
    "trajectory_cycles": ("trajectory_cycles", "Cycles over runs and checkpoints"),
    "endpoint_budget": ("endpoint_budget", "One match over a long stride, by its probes"),
    "natural_alignment": ("natural_alignment", "Models trained apart, by probes"),
    "merge_barriers": ("merge_barriers", "Merge barriers"),
    "aligned_merges": ("aligned_merges", "Two checkpoints averaged after align"),
    "resumed_training": ("resumed_training", "Training resumed after a gauge"),
}
TRAJECTORY_DRAWN = {
    f"draw_{figure}": drawing(
        figure,
        f"{TABLES}/{table}.parquet",
        f"trajectories/{figure}",
        title,
        category="Signed permutations",
    )
    for figure, (table, title) in TRAJECTORY_FIGURES.items()
    if table in TRAJECTORY_TABLES
}
TRAJECTORY_FIGURE_TARGETS = [f"{drawn['path']}.pdf" for drawn in TRAJECTORY_DRAWN.values()]


rule measure_merging:
    input:
        first=[checkpoint_at(first) for first, _ in MERGED],
        second=[checkpoint_at(second) for _, second in MERGED],
        calibration=[checkpoint_at(first, "calibration.parquet") for first, _ in MERGED],
    output:
        parquet=f"{TABLES}/merge_barriers.parquet",
        csv=f"{TABLES}/merge_barriers.csv",
    log:
        f"logs/{TABLES}/merge_barriers.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/merge_barriers.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=6000,
        runtime=240,
    params:
        code=code_of("measure_merging.py"),
        names=[["@".join(side) for side in pair] for pair in MERGED],
        configs=[[MODELS[model].get("config") for model, _ in pair] for pair in MERGED],
        merging=TRACED["merging"],
    script:
        "../scripts/measure_merging.py"


rule measure_averages:
    input:
        first=[checkpoint_at(first) for first, _ in AVERAGED],
        second=[checkpoint_at(second) for _, second in AVERAGED],
        runs=runs_of(AVERAGED),
        corpora=[corpus_path(name) for name in AVERAGED_CORPORA],
    output:
        parquet=f"{TABLES}/aligned_merges.parquet",
        csv=f"{TABLES}/aligned_merges.csv",
    log:
        f"logs/{TABLES}/aligned_merges.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/aligned_merges.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        code=code_of("measure_averages.py"),
        names=[["@".join(side) for side in pair] for pair in AVERAGED],
        recorded=[recorded_gauges(pair) for pair in AVERAGED],
        corpora=list(AVERAGED_CORPORA),
        averaging=TRACED["averaging"],
    script:
        "../scripts/measure_averages.py"


rule measure_resuming:
    input:
        checkpoints=[checkpoint_at(pair) for pair in RESUMED],
        corpus=corpus_path(TRACED["resuming"]["corpus"]),
    output:
        parquet=f"{TABLES}/resumed_training.parquet",
        csv=f"{TABLES}/resumed_training.csv",
    log:
        f"logs/{TABLES}/resumed_training.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/resumed_training.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=1440,
    params:
        code=code_of("measure_resuming.py"),
        names=["@".join(pair) for pair in RESUMED],
        configs=[MODELS[model].get("config") for model, _ in RESUMED],
        resuming=TRACED["resuming"],
    script:
        "../scripts/measure_resuming.py"


# --- transport along runs


rule measure_transport:
    input:
        runs=[f"results/{model}/runs" for model in FOLLOWED],
        base=[base_of(model, "checkpoint") for model in FOLLOWED],
        calibration=[base_of(model, "calibration.parquet") for model in FOLLOWED],
    output:
        **{name: f"{TABLES}/{name}.parquet" for name in FOLLOWED_TABLES},
        **{f"{name}_csv": f"{TABLES}/{name}.csv" for name in FOLLOWED_TABLES},
    log:
        f"logs/{TABLES}/trajectory_transport.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/trajectory_transport.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=1440,
    params:
        code=code_of("measure_transport.py"),
        entries={model: {"source": MODELS[model]["source"]} for model in FOLLOWED},
        configs=[MODELS[SOURCES[model].base.split("@")[0]].get("config") for model in FOLLOWED],
        probes=TRACED["probes"],
        budgets=TRACED["long_stride"],
        tables=FOLLOWED_TABLES,
    script:
        "../scripts/measure_transport.py"


rule measure_alignment_budget:
    input:
        checkpoints=[checkpoint_at(pair) for pair in APART],
        calibration=[checkpoint_at(pair, "calibration.parquet") for pair in APART[:1]],
    output:
        parquet=f"{TABLES}/natural_alignment.parquet",
        csv=f"{TABLES}/natural_alignment.csv",
    log:
        f"logs/{TABLES}/natural_alignment.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/natural_alignment.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=6000,
        runtime=240,
    params:
        code=code_of("measure_alignment_budget.py"),
        names=["@".join(pair) for pair in APART],
        configs=[MODELS[model].get("config") for model, _ in APART],
        budgets=TRACED["apart_budgets"],
    script:
        "../scripts/measure_alignment_budget.py"
