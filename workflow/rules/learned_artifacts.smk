LEARNED = config["signed_permutation"]["learned"]
# what is measured -> the checkpoints of which it is; of the first also what is learned on each
LEARNED_KINDS = {
    pair: entry["artifacts"]
    for entry in LEARNED["models"]
    for pair in listed_checkpoints(entry["model"], "signed_permutation.learned.models")
}
LEARNED_MODELS = {
    "learned": list(LEARNED_KINDS),
    "learned_audit": [
        pair
        for item in LEARNED["audited"]
        for pair in listed_checkpoints(item, "signed_permutation.learned.audited")
    ],
}
# table of results -> what of each checkpoint it is made from
LEARNED_MADE = {
    table: kind
    for table, kind in (("learned_artifacts", "learned"), ("learned_audits", "learned_audit"))
    if LEARNED_MODELS[kind]
}


rule learn_artifacts:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        prose=corpus_path(LEARNED["prose"]),
        code=corpus_path(LEARNED["code"]),
    output:
        "results/{model}/{revision}/signed_permutation/learned.parquet",
    log:
        "logs/learn_artifacts/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/learn_artifacts/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float32"),
        runtime=240,
    params:
        code=code_of("learn_artifacts.py"),
        entry=entry_part("modality", "config"),
        settings={key: LEARNED[key] for key in ("windows", "length", "budget")},
        artifacts=lambda wildcards: LEARNED_KINDS.get((wildcards.model, wildcards.revision), []),
        seeds=LEARNED["seeds"]["artifacts"],
    script:
        "../scripts/learn_artifacts.py"


use rule learn_artifacts as audit_learned with:
    output:
        "results/{model}/{revision}/signed_permutation/learned_audit.parquet",
    log:
        "logs/audit_learned/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/audit_learned/{model}/{revision}.tsv"
    params:
        code=code_of("learn_artifacts.py"),
        entry=entry_part("modality", "config"),
        settings={key: LEARNED[key] for key in ("windows", "length", "budget")},
        artifacts=[],
        seeds=LEARNED["seeds"]["audits"],
        top=config["signed_permutation"]["top"],


# figure -> the table that it is drawn from, and its name in the report
LEARNED_DRAWINGS = {
    "learned_artifacts": ("learned_artifacts", "Learned artifacts carried by recovered gauges"),
    "learned_artifacts_figure": ("learned_artifacts", "What carrying keeps of an effect"),
    "learned_audits": ("learned_audits", "Names after a gauge, by recovered gauges"),
}
LEARNED_DRAWN = {
    figure: names for figure, names in LEARNED_DRAWINGS.items() if names[0] in LEARNED_MADE
}
LEARNED_TABLE_TARGETS = [
    f"{TABLES}/{table}.{suffix}" for table in LEARNED_MADE for suffix in ("parquet", "csv")
] + [f"{FIGURES}/signed_permutation/{table}.pdf" for table in LEARNED_MADE]
LEARNED_FIGURE_TARGETS = [
    f"{FIGURES}/signed_permutation/{figure}.pdf"
    for figure in LEARNED_DRAWN
    if figure not in LEARNED_MADE
]


rule tabulate_learned:
    input:
        **{kind: learned_files(kind) for kind in LEARNED_MADE.values()},
    output:
        **{table: f"{TABLES}/{table}.parquet" for table in LEARNED_MADE},
        **{f"{table}_csv": f"{TABLES}/{table}.csv" for table in LEARNED_MADE},
    log:
        f"logs/{TABLES}/learned_artifacts.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        tables=list(LEARNED_MADE),
    script:
        "../scripts/tabulate.py"


rule draw_learned:
    input:
        **{table: f"{TABLES}/{table}.parquet" for table in LEARNED_MADE},
    output:
        **{
            f"{figure}_pdf": f"{FIGURES}/signed_permutation/{figure}.pdf"
            for figure in LEARNED_DRAWN
        },
        **{
            f"{figure}_svg": report(
                f"{FIGURES}/signed_permutation/{figure}.svg",
                caption=f"../report/{figure}.rst",
                category="Signed permutations",
                labels={"result": title},
            )
            for figure, (_, title) in LEARNED_DRAWN.items()
        },
    log:
        f"logs/{FIGURES}/signed_permutation/learned_artifacts.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw_gauges.py"),
        figures={figure: table for figure, (table, _) in LEARNED_DRAWN.items()},
    script:
        "../scripts/draw_gauges.py"
