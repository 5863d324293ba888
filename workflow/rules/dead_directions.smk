# Experiments around the fingerprint: a job for each checkpoint that any of them names, and one for what needs none.
EXPERIMENTS = config["dead_directions"]
# kind of table -> the section that says of which models it is measured
EXPERIMENT_KINDS = {
    "table5": "calibrations",
    "estimators": "estimators",
    "sample_budget": "sample_budget",
    "precision": "precision",
    "figure7": "rank_allocation",
    "constrained_artifacts": "constrained",
}


ASKED = {section: asked_of(section) for section in EXPERIMENT_KINDS.values()}
SYNTHETIC = {
    kind: f"results/dead_directions/{kind}.parquet" for kind in ("norm_zoo", "table6", "mechanism")
}
# figure -> the runs that it follows
TRAJECTORIES = {
    "figure2": EXPERIMENTS["trajectories"]["trained"],
    "figure5": EXPERIMENTS["trajectories"]["fine_tuned"],
}
for figure, followed in TRAJECTORIES.items():
    for model in followed:
        if model not in TUNED:
            fail(
                f"dead_directions.trajectories: {model} has no kept steps; name a model whose source is fine_tuned"
            )
# table -> the files that it is made from, by what they are
EXPERIMENT_INPUTS = {
    **{
        kind: [
            f"results/{model}/{revision}/dead_directions/{kind}.parquet"
            for model, revision in ASKED[section]
        ]
        for kind, section in EXPERIMENT_KINDS.items()
        if ASKED[section]
    },
    **{
        figure: [f"results/dead_directions/{model}-trajectory.parquet" for model in followed]
        for figure, followed in TRAJECTORIES.items()
        if followed
    },
    "norm_zoo": [SYNTHETIC["norm_zoo"]],
    "table6": [SYNTHETIC["table6"]],
    "table4": [*measured_files("mechanism"), SYNTHETIC["mechanism"]],
}
if any(
    "random_init" not in MODELS[model]["source"] for model, _ in STUDY
):  # these are of trained checkpoints alone
    EXPERIMENT_INPUTS["table3"] = measured_files("mechanism")
    EXPERIMENT_INPUTS["argmin_gamma"] = [*measured_files("fingerprint"), *measured_files("stacks")]
# figure or table -> its name in the report
EXPERIMENT_DRAWINGS = {
    "table3": "Gain concentration and principal angles",
    "table4": "Norm placement, and which sublayer lowers the smallest singular value",
    "table5": "Bottom directions on other inputs",
    "table6": "What each training conserves",
    "figure2": "The stream along a training",
    "figure5": "Feed-forwards fine-tuned",
    "figure7": "Perplexity with bottom directions removed",
    "argmin_gamma": "Bottom directions and smallest gains",
    "estimators": "Six estimators of one pass",
    "sample_budget": "Samples per coordinate",
    "precision": "What each arithmetic hides",
    "norm_zoo": "Kernels of twelve norms",
    "constrained_artifacts": "Artifacts kept out of dead directions",
}
EXPERIMENT_TABLES = [
    f"{TABLES}/{table}.{suffix}" for table in EXPERIMENT_INPUTS for suffix in ("parquet", "csv")
]
EXPERIMENT_FIGURES = [f"{FIGURES}/{table}.pdf" for table in EXPERIMENT_INPUTS]


rule measure_dead_directions:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
        directions="results/{model}/{revision}/dead_directions.safetensors",
        tokenizer=tokenizer_checkpoint,
        texts=lambda wildcards: [
            corpus_path(name) for name in experiment_corpora(wildcards) if name in BUILT_CORPORA
        ],
    output:
        **{
            kind: f"results/{{model}}/{{revision}}/dead_directions/{kind}.parquet"
            for kind in EXPERIMENT_KINDS
        },
    log:
        "logs/measure_dead_directions/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/measure_dead_directions/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=480,
    params:
        code=code_of("measure_dead_directions.py"),
        entry=entry_part("source", "modality", "calibration", "tokenizer", "config"),
        texts=lambda wildcards: [
            name for name in experiment_corpora(wildcards) if name in BUILT_CORPORA
        ],
        generated=lambda wildcards: [
            name for name in experiment_corpora(wildcards) if name not in BUILT_CORPORA
        ],
        experiments=asked_options,
        sequences=calibration_option("sequences"),
        length=calibration_option("length"),
        seed=config["calibration"]["seed"],
        bos=calibration_option("bos"),
        batch_size=capture_option("batch_size"),
        jackknife_groups=capture_option("jackknife_groups"),
    script:
        "../scripts/measure_dead_directions.py"


rule measure_trajectory:
    input:
        runs="results/{model}/runs",
        corpus=calibration_corpus,
    output:
        "results/dead_directions/{model}-trajectory.parquet",
    log:
        "logs/measure_trajectory/{model}.log",
    wildcard_constraints:
        model=alternatives(TUNED),
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=240,
    params:
        code=code_of("measure_trajectory.py"),
        entry=entry_part("source", "modality", "calibration", "config"),
        sequences=calibration_option("sequences"),
        length=calibration_option("length"),
        seed=config["calibration"]["seed"],
        bos=calibration_option("bos"),
        batch_size=capture_option("batch_size"),
        jackknife_groups=capture_option("jackknife_groups"),
    script:
        "../scripts/measure_trajectory.py"


rule measure_norms:
    input:
        shapes=EXPERIMENTS["placements"]["shapes"],
    output:
        **SYNTHETIC,
    log:
        "logs/measure_norms.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=2000,
        runtime=60,
    params:
        code=code_of("measure_norms.py"),
        seeds=EXPERIMENTS["placements"]["seeds"],
        seed=EXPERIMENTS["seed"],
    script:
        "../scripts/measure_norms.py"


rule tabulate_dead_directions:
    input:
        **EXPERIMENT_INPUTS,
    output:
        **{table: f"{TABLES}/{table}.parquet" for table in EXPERIMENT_INPUTS},
        **{f"{table}_csv": f"{TABLES}/{table}.csv" for table in EXPERIMENT_INPUTS},
    log:
        f"logs/{TABLES}/dead_directions.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        tables=list(EXPERIMENT_INPUTS),
    script:
        "../scripts/tabulate.py"


rule draw_dead_directions:
    input:
        **{table: f"{TABLES}/{table}.parquet" for table in EXPERIMENT_INPUTS},
    output:
        **{f"{table}_pdf": f"{FIGURES}/{table}.pdf" for table in EXPERIMENT_INPUTS},
        **{
            f"{table}_svg": report(
                f"{FIGURES}/{table}.svg",
                caption=f"../report/{table}.rst",
                category="Dead directions",
                labels={"result": EXPERIMENT_DRAWINGS[table]},
            )
            for table in EXPERIMENT_INPUTS
        },
    log:
        f"logs/{FIGURES}/dead_directions.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw_gauges.py"),
        figures={table: table for table in EXPERIMENT_INPUTS},
    script:
        "../scripts/draw_gauges.py"
