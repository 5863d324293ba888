TABLE_NAMES = ("table1", "table2", "trained_vs_random", "figure3", "figure6")


rule tabulate_table1:
    input:
        measured=study_files("stacks", "schur"),
        published="config/published.yaml",
    output:
        parquet=f"{TABLES}/table1.parquet",
        csv=f"{TABLES}/table1.csv",
    log:
        f"logs/{TABLES}/table1.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        table="table1",
    script:
        "../scripts/tabulate.py"


use rule tabulate_table1 as tabulate_table2 with:
    input:
        measured=study_files("stacks"),
        published="config/published.yaml",
    output:
        parquet=f"{TABLES}/table2.parquet",
        csv=f"{TABLES}/table2.csv",
    log:
        f"logs/{TABLES}/table2.log",
    params:
        code=code_of("tabulate.py"),
        table="table2",


use rule tabulate_table2 as tabulate_trained_vs_random with:
    output:
        parquet=f"{TABLES}/trained_vs_random.parquet",
        csv=f"{TABLES}/trained_vs_random.csv",
    log:
        f"logs/{TABLES}/trained_vs_random.log",
    params:
        code=code_of("tabulate.py"),
        table="trained_vs_random",


use rule tabulate_table1 as tabulate_figure3 with:
    input:
        measured=study_files("stacks", "fingerprint"),
        published="config/published.yaml",
    output:
        parquet=f"{TABLES}/figure3.parquet",
        csv=f"{TABLES}/figure3.csv",
    log:
        f"logs/{TABLES}/figure3.log",
    params:
        code=code_of("tabulate.py"),
        table="figure3",


use rule tabulate_table1 as tabulate_figure6 with:
    output:
        parquet=f"{TABLES}/figure6.parquet",
        csv=f"{TABLES}/figure6.csv",
    log:
        f"logs/{TABLES}/figure6.log",
    params:
        code=code_of("tabulate.py"),
        table="figure6",
