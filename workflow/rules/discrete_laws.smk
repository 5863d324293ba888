# What signed permutations are on their own: assignment, the discrete part of a rotation, the least example, the rules.

LAWS = config["signed_permutation"]["laws"]
TURNED = [
    tuple(
        traced_checkpoint(pair[side], f"signed_permutation.laws.scaffold.pairs.{number}.{side}")
        for side in ("first", "second")
    )
    for number, pair in enumerate(LAWS["scaffold"]["pairs"])
]
GREEDY = [
    traced_checkpoint(name, "signed_permutation.laws.greedy.models")
    for name in LAWS["greedy"]["models"]
]
if len(GREEDY) > 1:
    fail("signed_permutation.laws.greedy.models: expected one checkpoint at most")
STATED = ["minimal_example", "transport_rules"] if LAWS["shapes"] else []
LAW_TABLES = [
    *STATED,
    *(["greedy_assignment"] if GREEDY else []),
    *(["scaffold"] if TURNED else []),
]
# figure -> the table that it is drawn from, and its name in the report
LAW_FIGURES = {
    "artifact_rules": ("transport_rules", "How artifacts move"),
    "weight_rules": ("transport_rules", "How weights move"),
    "minimal_example": ("minimal_example", "A permutation alone, on two coordinates"),
    "greedy_assignment": ("greedy_assignment", "Greedy assignment where it is hard"),
    "scaffold": ("scaffold", "The signed permutation inside a rotation"),
}
LAW_DRAWN = {
    f"draw_{figure}": drawing(
        figure,
        f"{TABLES}/{table}.parquet",
        f"signed_permutation/{figure}",
        title,
        category="Signed permutations",
    )
    for figure, (table, title) in LAW_FIGURES.items()
    if table in LAW_TABLES
}
LAW_TABLE_TARGETS = [
    f"{TABLES}/{name}.{suffix}" for name in LAW_TABLES for suffix in ("parquet", "csv")
]
LAW_FIGURE_TARGETS = [f"{drawn['path']}.pdf" for drawn in LAW_DRAWN.values()]


rule state_laws:
    input:
        shapes=[beside(path) for path in LAWS["shapes"]],
    output:
        **{name: f"{TABLES}/{name}.parquet" for name in ("minimal_example", "transport_rules")},
        **{f"{name}_csv": f"{TABLES}/{name}.csv" for name in ("minimal_example", "transport_rules")},
    log:
        f"logs/{TABLES}/transport_rules.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("state_laws.py"),
        tables=["minimal_example", "transport_rules"],
    script:
        "../scripts/state_laws.py"


rule measure_greedy:
    input:
        checkpoint=[checkpoint_at(pair) for pair in GREEDY],
        calibration=[checkpoint_at(pair, "calibration.parquet") for pair in GREEDY],
    output:
        parquet=f"{TABLES}/greedy_assignment.parquet",
        csv=f"{TABLES}/greedy_assignment.csv",
    log:
        f"logs/{TABLES}/greedy_assignment.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/greedy_assignment.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        code=code_of("measure_greedy.py"),
        model="@".join(GREEDY[0]) if GREEDY else None,
        overrides=MODELS[GREEDY[0][0]].get("config") if GREEDY else None,
        settings=LAWS["greedy"],
    script:
        "../scripts/measure_greedy.py"


rule measure_scaffold:
    input:
        first=[checkpoint_at(first) for first, _ in TURNED],
        second=[checkpoint_at(second) for _, second in TURNED],
        calibration=[calibration_of_pair(first) for first, _ in TURNED],
        runs=runs_of(TURNED),
    output:
        parquet=f"{TABLES}/scaffold.parquet",
        csv=f"{TABLES}/scaffold.csv",
    log:
        f"logs/{TABLES}/scaffold.log",
    benchmark:
        f"logs/benchmarks/{TABLES}/scaffold.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        code=code_of("measure_scaffold.py"),
        names=[["@".join(side) for side in pair] for pair in TURNED],
        configs=[[MODELS[model].get("config") for model, _ in pair] for pair in TURNED],
        recorded=[recorded_gauges(pair) for pair in TURNED],
        sequences=LAWS["scaffold"]["sequences"],
        seed=LAWS["scaffold"]["seed"],
    script:
        "../scripts/measure_scaffold.py"
