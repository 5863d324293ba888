LINEAGE = os.path.join("results/lineage", config["study"]["name"]).rstrip("/")
# name in the tables -> (model, revision)
LINEAGE_SETS = [
    [pair for item in names for pair in listed_checkpoints(item, "lineage.sets")]
    for names in config["lineage"]["sets"]
]
LINEAGE_HIDDEN = [
    {
        side: listed_checkpoints(pair[side], "lineage.hidden")[0]
        for side in ("a", "b", "third")
        if side in pair
    }
    for pair in config["lineage"]["hidden"]
]
LINEAGE_MODELS = list(
    dict.fromkeys(
        pair
        for names in [*LINEAGE_SETS, *(pair.values() for pair in LINEAGE_HIDDEN)]
        for pair in names
    )
)
LINEAGE_TABLES = [
    f"{LINEAGE}/{kind}.{ending}"
    for kind in ("pairs", "evasions", "origins")
    for ending in ("parquet", "csv")
    if config["lineage"]["sets" if kind == "pairs" else "hidden"]
]
LINEAGE_DRAWN = {
    f"draw_lineage_{figure}": drawing(
        f"lineage_{figure}",
        f"{LINEAGE}/{table}.parquet",
        f"lineage/{figure}",
        result,
        category="Lineage",
    )
    for figure, table, result in (
        ("matrix", "pairs", "Which checkpoints share an initialisation"),
        ("evasions", "evasions", "What hides descent"),
        ("origins", "origins", "Which layers come from the other"),
    )
}
LINEAGE_FIGURES = [
    f"{drawn['path']}.pdf" for drawn in LINEAGE_DRAWN.values() if drawn["table"] in LINEAGE_TABLES
]


# One job for all: importing torch costs more than most pairs.
rule measure_lineage:
    input:
        checkpoints=[f"results/{model}/{revision}/checkpoint" for model, revision in LINEAGE_MODELS],
        receptors=lineage_receptors(),
    output:
        pairs=f"{LINEAGE}/pairs.parquet",
        pairs_csv=f"{LINEAGE}/pairs.csv",
        evasions=f"{LINEAGE}/evasions.parquet",
        evasions_csv=f"{LINEAGE}/evasions.csv",
        origins=f"{LINEAGE}/origins.parquet",
        origins_csv=f"{LINEAGE}/origins.csv",
    log:
        f"logs/{LINEAGE}/lineage.log",
    benchmark:
        f"logs/benchmarks/{LINEAGE}/lineage.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=3000,
        runtime=60,
    params:
        code=code_of("measure_lineage.py"),
        names=[lineage_name(pair) for pair in LINEAGE_MODELS],
        entries=[MODELS[model].get("config", {}) for model, _ in LINEAGE_MODELS],
        sets=[[lineage_name(pair) for pair in names] for names in LINEAGE_SETS],
        hidden=[lineage_hiding(*each) for each in zip(LINEAGE_HIDDEN, config["lineage"]["hidden"])],
        draws=config["lineage"]["draws"],
    script:
        "../scripts/measure_lineage.py"
