# kind of table -> the files that hold it: tables of studies, and what checkpoints are measured by where these are tables of their own
CONTROLLED = {
    "table2": [f"{TABLES}/table2.parquet"],
    "fingerprint": measured_files("fingerprint"),
    "schur": measured_files("schur"),
    "reinitialised_fingerprint": twin_files("fingerprint"),
    "reinitialised_schur": twin_files("schur"),
    "exact_recovery": [f"{TABLES}/exact_recovery.parquet"],
    "recovery_calibration": [f"{TABLES}/recovery_calibration.parquet"],
    **{
        table: [f"{TABLES}/{table}.parquet"]
        for table in ("gauge_table2", "gauge_carried", "gauge_table8", "gauge_table15")
        if table in MADE
    },
    "redundancy_checks": [f"{REDUNDANCY}/checks.parquet"],
    "redundancy_falsifier": [f"{REDUNDANCY}/falsifier.parquet"],
    "redundancy_jacobian": [f"{REDUNDANCY}/jacobian.parquet"],
    "comparison_nulls": [f"results/compare/{pair}/nulls.parquet" for pair in COMPARED_PAIRS],
}
CONTROL_TABLES = [f"{TABLES}/controls.{suffix}" for suffix in ("parquet", "csv")] + [f"{FIGURES}/controls.pdf"]


rule tabulate_controls:
    input:
        **CONTROLLED,
    output:
        parquet=f"{TABLES}/controls.parquet",
        csv=f"{TABLES}/controls.csv",
    log:
        f"logs/{TABLES}/controls.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate_controls.py"),
    script:
        "../scripts/tabulate_controls.py"


use rule draw_table1 as draw_controls with:
    input:
        f"{TABLES}/controls.parquet",
    output:
        pdf=f"{FIGURES}/controls.pdf",
        svg=report(
            f"{FIGURES}/controls.svg",
            caption="../report/controls.rst",
            category="Tables",
            labels={"table": "Controls and their power"},
        ),
    log:
        f"logs/{FIGURES}/controls.log",
    params:
        code=code_of("draw.py"),
        figure="controls",
