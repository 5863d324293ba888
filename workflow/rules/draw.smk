TABLE_TARGETS = [f"{TABLES}/{name}.{suffix}" for name in TABLE_NAMES for suffix in ("parquet", "csv")] + [
    f"{FIGURES}/{name}.pdf" for name in ("table1", "table2", "trained-vs-random")
]
FIGURE_TARGETS = [f"{FIGURES}/{name}.pdf" for name in ("figure3", "figure6")]


rule draw_table1:
    input:
        f"{TABLES}/table1.parquet",
    output:
        pdf=f"{FIGURES}/table1.pdf",
        svg=report(
            f"{FIGURES}/table1.svg",
            caption="../report/table1.rst",
            category="Tables",
            labels={"table": "Schur complement ratio, random and trained"},
        ),
    log:
        f"logs/{FIGURES}/table1.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw.py"),
        figure="table1",
    script:
        "../scripts/draw.py"


use rule draw_table1 as draw_table2 with:
    input:
        f"{TABLES}/table2.parquet",
    output:
        pdf=f"{FIGURES}/table2.pdf",
        svg=report(
            f"{FIGURES}/table2.svg",
            caption="../report/table2.rst",
            category="Tables",
            labels={"table": "Fingerprint of every checkpoint"},
        ),
    log:
        f"logs/{FIGURES}/table2.log",
    params:
        code=code_of("draw.py"),
        figure="table2",


use rule draw_table1 as draw_trained_vs_random with:
    input:
        f"{TABLES}/trained_vs_random.parquet",
    output:
        pdf=f"{FIGURES}/trained-vs-random.pdf",
        svg=report(
            f"{FIGURES}/trained-vs-random.svg",
            caption="../report/trained_vs_random.rst",
            category="Tables",
            labels={"table": "Trained against re-initialised"},
        ),
    log:
        f"logs/{FIGURES}/trained-vs-random.log",
    params:
        code=code_of("draw.py"),
        figure="trained_vs_random",


use rule draw_table1 as draw_figure3 with:
    input:
        f"{TABLES}/figure3.parquet",
    output:
        pdf=f"{FIGURES}/figure3.pdf",
        svg=report(
            f"{FIGURES}/figure3.svg",
            caption="../report/figure3.rst",
            category="Figures",
            labels={"figure": "Smallest active singular value by depth"},
        ),
    log:
        f"logs/{FIGURES}/figure3.log",
    params:
        code=code_of("draw.py"),
        figure="figure3",


use rule draw_table1 as draw_figure6 with:
    input:
        f"{TABLES}/figure6.parquet",
    output:
        pdf=f"{FIGURES}/figure6.pdf",
        svg=report(
            f"{FIGURES}/figure6.svg",
            caption="../report/figure6.rst",
            category="Figures",
            labels={"figure": "Schur complement ratio across models"},
        ),
    log:
        f"logs/{FIGURES}/figure6.log",
    params:
        code=code_of("draw.py"),
        figure="figure6",
