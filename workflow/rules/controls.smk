# kind of table -> the files that hold it: tables of studies, and what checkpoints are measured by where these are tables of their own
CONTROLLED = {
    "table2": [f"{TABLES}/table2.parquet"],
    "fingerprint": measured_files("fingerprint"),
    "schur": measured_files("schur"),
    "reinitialised_fingerprint": twin_files("fingerprint"),
    "reinitialised_schur": twin_files("schur"),
    "exact_recovery": [f"{TABLES}/exact_recovery.parquet"],
    "exact_recovery_null": [f"{TABLES}/exact_recovery_null.parquet"],
    **{
        table: [f"{TABLES}/{table}.parquet"]
        for table in ("group_boundary", "carried_artifacts", "name_audit", "recovered_gauges")
        if table in MADE
    },
    **{table: [f"{TABLES}/{table}.parquet"] for table in LEARNED_MADE},
    **{
        table: [f"{TABLES}/{table}.parquet"]
        for table in ("norm_zoo", "table6", "constrained_artifacts")
        if table in EXPERIMENT_INPUTS
    },
    **{
        table: [f"{TABLES}/{table}.parquet"]
        for table in ("merge_barriers", "resumed_training", "transport_trust")
        if table in TRAJECTORY_TABLES
    },
    **{
        table: [f"{TABLES}/{table}.parquet"]
        for table in ("scaffold", "transport_rules")
        if table in LAW_TABLES
    },
    "redundancy_checks": [f"{REDUNDANCY}/checks.parquet"],
    "redundancy_falsifier": [f"{REDUNDANCY}/falsifier.parquet"],
    "redundancy_jacobian": [f"{REDUNDANCY}/jacobian.parquet"],
    "redundancy_hessian": [f"{REDUNDANCY}/hessian.parquet"],
    "checkpoint_comparison_nulls": [
        f"{COMPARISONS}/{pair}/nulls.parquet" for pair in COMPARED_PAIRS
    ],
}
CONTROLS_DRAWN = {
    "draw_controls": drawing(
        "controls",
        f"{TABLES}/controls.parquet",
        "controls",
        "Controls and their power",
        category="Controls",
    )
}
CONTROL_TABLES = [f"{TABLES}/controls.{suffix}" for suffix in ("parquet", "csv")] + [
    f"{FIGURES}/controls.pdf"
]


rule tabulate_controls:
    input:
        **CONTROLLED,
    output:
        controls=f"{TABLES}/controls.parquet",
        controls_csv=f"{TABLES}/controls.csv",
    log:
        f"logs/{TABLES}/controls.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        tables=["controls"],
    script:
        "../scripts/tabulate.py"
