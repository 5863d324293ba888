# table of the dead directions -> the measurements that it is made from
DEAD_TABLES = {
    "table1": ("stacks", "schur"),
    "table2": ("stacks",),
    "trained_vs_random": ("stacks",),
    "figure3": ("stacks", "fingerprint"),
    "figure6": ("stacks", "schur"),
}
# what it draws of each -> the figure's path and its name in the report
DEAD_RESULTS = {
    "table1": ("table1", "Schur complement ratio, random and trained"),
    "table2": ("table2", "Fingerprint of every checkpoint"),
    "trained_vs_random": ("trained-vs-random", "Trained against re-initialised"),
    "figure3": ("figure3", "Smallest active singular value by depth"),
    "figure6": ("figure6", "Schur complement ratio across models"),
}
DEAD_DRAWN = {
    f"draw_{name}": drawing(
        name, f"{TABLES}/{name}.parquet", figure, result, category="Dead directions"
    )
    for name, (figure, result) in DEAD_RESULTS.items()
}
TABLE_TARGETS = [
    f"{TABLES}/{name}.{suffix}" for name in DEAD_TABLES for suffix in ("parquet", "csv")
] + [f"{FIGURES}/{name}.pdf" for name in ("table1", "table2", "trained-vs-random")]
FIGURE_TARGETS = [f"{FIGURES}/{name}.pdf" for name in ("figure3", "figure6")]


# Table 2 of the study's first checkpoint alone: with --prioritize it is there minutes after the start of a long run.
FIRST_TABLES = [f"{TABLES}/first_checkpoint.{suffix}" for suffix in ("parquet", "csv")]


rule tabulate_first_checkpoint:
    input:
        without_twins=[
            f"results/{model}/{revision}/{name}"
            for model, revision in STUDY[:1]
            for name in ("checkpoint.json", "stacks.parquet")
        ],
        published=beside("config/published/dead_directions.yaml"),
    output:
        table2=FIRST_TABLES[0],
        table2_csv=FIRST_TABLES[1],
    log:
        f"logs/{TABLES}/first_checkpoint.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        tables=["table2"],
    message:
        f"A first table to read: {FIRST_TABLES[1]}, the fingerprint of {STUDY[0][0]}; those of all checkpoints follow"
    script:
        "../scripts/tabulate.py"


for tabulated, kinds in DEAD_TABLES.items():

    rule:
        name:
            f"tabulate_{tabulated}"
        input:
            measured=study_files(*kinds),
            published=beside("config/published/dead_directions.yaml"),
        output:
            **{
                tabulated: f"{TABLES}/{tabulated}.parquet",
                f"{tabulated}_csv": f"{TABLES}/{tabulated}.csv",
            },
        log:
            f"logs/{TABLES}/{tabulated}.log",
        conda:
            "../../envs/pipeline.yaml"
        threads: 1
        resources:
            mem_mb=2000,
            runtime=20,
        params:
            code=code_of("tabulate.py"),
            tables=[tabulated],
        script:
            "../scripts/tabulate.py"
