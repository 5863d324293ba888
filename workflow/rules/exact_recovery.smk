RECOVERED = listed("exact_recovery", "models")
SECOND_ROUTE = [pair for pair in listed("exact_recovery", "second_route") if pair in RECOVERED]
RECOVERY_TABLES = (
    "exact_recovery",
    "exact_recovery_map",
    "exact_recovery_null",
    "exact_recovery_margins",
    "exact_recovery_columns",
)
RECOVERY_FIGURES = ("recovered-share", "null-calibration", "margin-against-n", "hardest-column")
COMPARED = (
    "map",
    "certificates",
    "null",
    "stragglers",
    "falsifier",
    "margins",
    "hardest",
    "attack",
)
# rule -> drawing, table, figure, and its name in the report
RECOVERY_RESULTS = {
    "draw_recovery": (
        "exact_recovery_map",
        "exact_recovery_map",
        "map",
        "Which stored weights the activations determine",
    ),
    "draw_recovery_checks": (
        "exact_recovery_checks",
        "exact_recovery",
        "checks",
        "What was checked, and the power of each check",
    ),
    "draw_recovery_calibration": (
        "exact_recovery_null",
        "exact_recovery_null",
        "null-calibration",
        "Rounding residuals at wrong places",
    ),
    "draw_exact_recovery": (
        "exact_recovery",
        "exact_recovery",
        "recovered-share",
        "Recovered share by population",
    ),
    "draw_recovery_trend": (
        "exact_recovery_margins",
        "exact_recovery_margins",
        "margin-against-n",
        "Margin against the number of observations",
    ),
    "draw_recovery_gains": (
        "exact_recovery_columns",
        "exact_recovery_columns",
        "hardest-column",
        "The hardest column and its gains",
    ),
}
RECOVERY_DRAWN = {
    drawn_by: drawing(
        name,
        f"{TABLES}/{table}.parquet",
        f"exact_recovery/{figure}",
        result,
        category="Exact recovery",
    )
    for drawn_by, (name, table, figure, result) in RECOVERY_RESULTS.items()
}
RECOVERY_TABLE_TARGETS = [
    f"{TABLES}/{name}.{suffix}" for name in RECOVERY_TABLES for suffix in ("parquet", "csv")
] + [f"{FIGURES}/exact_recovery/{name}.pdf" for name in ("map", "checks")]
RECOVERY_FIGURE_TARGETS = [f"{FIGURES}/exact_recovery/{name}.pdf" for name in RECOVERY_FIGURES]


rule observe_activations:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
    output:
        temp(directory("results/{model}/{revision}/exact_recovery/observations")),
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
        rows=config["exact_recovery"]["rows"],
        seed=config["exact_recovery"]["seed"],
    script:
        "../scripts/observe_activations.py"


# It is given the observations and nothing else: neither the checkpoint nor its manifest.
rule solve_weights:
    input:
        observations="results/{model}/{revision}/exact_recovery/observations",
    output:
        directory("results/{model}/{revision}/exact_recovery/solution"),
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
        temp(directory("results/{model}/{revision}/exact_recovery/second-route")),
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
        first="results/{model}/{revision}/exact_recovery/solution",
        second="results/{model}/{revision}/exact_recovery/second-route",
    output:
        "results/{model}/{revision}/exact_recovery/routes.parquet",
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
        observations="results/{model}/{revision}/exact_recovery/observations",
        solution="results/{model}/{revision}/exact_recovery/solution",
    output:
        directory("results/{model}/{revision}/exact_recovery/closed"),
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
        rows=config["exact_recovery"]["rows"],
        seed=config["exact_recovery"]["seed"] + 1,
        outputs=config["exact_recovery"]["fresh_outputs"],
        chunks=config["exact_recovery"]["most_chunks"],
    script:
        "../scripts/close_stragglers.py"


rule compare_recovery:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        closed="results/{model}/{revision}/exact_recovery/closed",
    output:
        **{
            kind: f"results/{{model}}/{{revision}}/exact_recovery/{kind}.parquet"
            for kind in COMPARED
        },
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
        closed="results/{model}/{revision}/exact_recovery/closed",
    output:
        folder=directory("results/{model}/{revision}/exact_recovery/assembled"),
        table="results/{model}/{revision}/exact_recovery/assembly.parquet",
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
        **{kind: recovery_files(kind, RECOVERED) for kind in (*COMPARED, "assembly")},
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
