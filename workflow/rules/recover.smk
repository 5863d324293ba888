RECOVERY_TABLES = ("exact_recovery", "recovery", "recovery_calibration", "recovery_trend", "recovery_gains")
RECOVERY_FIGURES = ("recovered-share", "null-calibration", "margin-against-n", "hardest-column")
COMPARED = ("map", "certificates", "null", "stragglers", "falsifier", "margins", "hardest", "attack")
RECOVERY_TABLE_TARGETS = [f"{TABLES}/{name}.{suffix}" for name in RECOVERY_TABLES for suffix in ("parquet", "csv")] + [
    f"{FIGURES}/exact-recovery/{name}.pdf" for name in ("map", "checks")
]
RECOVERY_FIGURE_TARGETS = [f"{FIGURES}/exact-recovery/{name}.pdf" for name in RECOVERY_FIGURES]


rule observe_activations:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
    output:
        temp(directory("results/{model}/{revision}/recovery/observations")),
    log:
        "logs/observe_activations/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/observe_activations/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=60,
    params:
        code=code_of("observe_activations.py"),
        entry=entry_part("config"),
        rows=config["recovery"]["rows"],
        seed=config["recovery"]["seed"],
    script:
        "../scripts/observe_activations.py"


# It is given the observations and nothing else: neither the checkpoint nor its manifest.
rule solve_weights:
    input:
        observations="results/{model}/{revision}/recovery/observations",
    output:
        directory("results/{model}/{revision}/recovery/solution"),
    log:
        "logs/solve_weights/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/solve_weights/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=solver_memory,
        runtime=120,
    params:
        code=code_of("solve_weights.py"),
        arithmetic="torch",
    script:
        "../scripts/solve_weights.py"


# The same from the same observations, with another BLAS, another LAPACK and one thread: the bits must not depend on them.
use rule solve_weights as solve_weights_again with:
    output:
        temp(directory("results/{model}/{revision}/recovery/second-route")),
    log:
        "logs/solve_weights_again/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/solve_weights_again/{model}/{revision}.tsv"
    threads: 1
    params:
        code=code_of("solve_weights.py"),
        arithmetic="scipy",


rule compare_routes:
    input:
        manifest="results/{model}/{revision}/checkpoint.json",
        first="results/{model}/{revision}/recovery/solution",
        second="results/{model}/{revision}/recovery/second-route",
    output:
        "results/{model}/{revision}/recovery/routes.parquet",
    log:
        "logs/compare_routes/{model}/{revision}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=model_memory("float64"),
        runtime=20,
    params:
        code=code_of("compare_routes.py"),
    script:
        "../scripts/compare_routes.py"


rule close_stragglers:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        observations="results/{model}/{revision}/recovery/observations",
        solution="results/{model}/{revision}/recovery/solution",
    output:
        directory("results/{model}/{revision}/recovery/closed"),
    log:
        "logs/close_stragglers/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/close_stragglers/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=240,
    params:
        code=code_of("close_stragglers.py"),
        entry=entry_part("config"),
        rows=config["recovery"]["rows"],
        seed=config["recovery"]["seed"] + 1,
        outputs=config["recovery"]["fresh_outputs"],
        chunks=config["recovery"]["most_chunks"],
    script:
        "../scripts/close_stragglers.py"


rule compare_recovery:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        closed="results/{model}/{revision}/recovery/closed",
    output:
        **{kind: f"results/{{model}}/{{revision}}/recovery/{kind}.parquet" for kind in COMPARED},
    log:
        "logs/compare_recovery/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/compare_recovery/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=model_memory("float64"),
        runtime=20,
    params:
        code=code_of("compare_recovery.py"),
        entry=entry_part("config"),
    script:
        "../scripts/compare_recovery.py"


rule assemble_recovery:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        closed="results/{model}/{revision}/recovery/closed",
    output:
        folder=directory("results/{model}/{revision}/recovery/assembled"),
        table="results/{model}/{revision}/recovery/assembly.parquet",
    log:
        "logs/assemble_recovery/{model}/{revision}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=model_memory("float64"),
        runtime=20,
    params:
        code=code_of("assemble_recovery.py"),
        entry=entry_part("config"),
    script:
        "../scripts/assemble_recovery.py"


rule tabulate_recovery:
    input:
        **{kind: recovery_files(kind) for kind in (*COMPARED, "assembly")},
        routes=recovery_files("routes", SECOND_ROUTE),
    output:
        **{name: f"{TABLES}/{name}.parquet" for name in RECOVERY_TABLES},
        **{f"{name}_csv": f"{TABLES}/{name}.csv" for name in RECOVERY_TABLES},
    log:
        f"logs/{TABLES}/exact_recovery.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate_recovery.py"),
    script:
        "../scripts/tabulate_recovery.py"


rule draw_recovery:
    input:
        f"{TABLES}/recovery.parquet",
    output:
        pdf=f"{FIGURES}/exact-recovery/map.pdf",
        svg=report(
            f"{FIGURES}/exact-recovery/map.svg",
            caption="../report/recovery.rst",
            category="Exact recovery",
            labels={"table": "Which stored weights the activations determine"},
        ),
    log:
        f"logs/{FIGURES}/exact-recovery/map.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw.py"),
        figure="recovery",
    script:
        "../scripts/draw.py"


use rule draw_recovery as draw_recovery_checks with:
    input:
        f"{TABLES}/exact_recovery.parquet",
    output:
        pdf=f"{FIGURES}/exact-recovery/checks.pdf",
        svg=report(
            f"{FIGURES}/exact-recovery/checks.svg",
            caption="../report/recovery_checks.rst",
            category="Exact recovery",
            labels={"table": "What was checked, and the power of each check"},
        ),
    log:
        f"logs/{FIGURES}/exact-recovery/checks.log",
    params:
        code=code_of("draw.py"),
        figure="recovery_checks",


use rule draw_recovery as draw_recovery_calibration with:
    input:
        f"{TABLES}/recovery_calibration.parquet",
    output:
        pdf=f"{FIGURES}/exact-recovery/null-calibration.pdf",
        svg=report(
            f"{FIGURES}/exact-recovery/null-calibration.svg",
            caption="../report/recovery_calibration.rst",
            category="Exact recovery",
            labels={"figure": "Rounding residuals at wrong places"},
        ),
    log:
        f"logs/{FIGURES}/exact-recovery/null-calibration.log",
    params:
        code=code_of("draw.py"),
        figure="recovery_calibration",


use rule draw_recovery as draw_exact_recovery with:
    input:
        f"{TABLES}/exact_recovery.parquet",
    output:
        pdf=f"{FIGURES}/exact-recovery/recovered-share.pdf",
        svg=report(
            f"{FIGURES}/exact-recovery/recovered-share.svg",
            caption="../report/exact_recovery.rst",
            category="Exact recovery",
            labels={"figure": "Recovered share by population"},
        ),
    log:
        f"logs/{FIGURES}/exact-recovery/recovered-share.log",
    params:
        code=code_of("draw.py"),
        figure="exact_recovery",


use rule draw_recovery as draw_recovery_trend with:
    input:
        f"{TABLES}/recovery_trend.parquet",
    output:
        pdf=f"{FIGURES}/exact-recovery/margin-against-n.pdf",
        svg=report(
            f"{FIGURES}/exact-recovery/margin-against-n.svg",
            caption="../report/recovery_trend.rst",
            category="Exact recovery",
            labels={"figure": "Margin against the number of observations"},
        ),
    log:
        f"logs/{FIGURES}/exact-recovery/margin-against-n.log",
    params:
        code=code_of("draw.py"),
        figure="recovery_trend",


use rule draw_recovery as draw_recovery_gains with:
    input:
        f"{TABLES}/recovery_gains.parquet",
    output:
        pdf=f"{FIGURES}/exact-recovery/hardest-column.pdf",
        svg=report(
            f"{FIGURES}/exact-recovery/hardest-column.svg",
            caption="../report/recovery_gains.rst",
            category="Exact recovery",
            labels={"figure": "The hardest column and its gains"},
        ),
    log:
        f"logs/{FIGURES}/exact-recovery/hardest-column.log",
    params:
        code=code_of("draw.py"),
        figure="recovery_gains",
