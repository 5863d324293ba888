RECOVERED = listed("exact_recovery", "models")
BLOCK_JOBS = config["exact_recovery"]["block_jobs"]
# read by torch, MKL and OpenBLAS when they load
OTHER_KERNELS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
}
SECOND_ROUTE = [pair for pair in listed("exact_recovery", "second_route") if pair in RECOVERED]
RECOVERY_TABLES = (
    "exact_recovery",
    "exact_recovery_map",
    "exact_recovery_parts",
    "exact_recovery_minimum_norm",
    "exact_recovery_calls",
    "exact_recovery_null",
    "exact_recovery_margins",
    "exact_recovery_columns",
)
RECOVERY_FIGURES = (
    "recovered-share",
    "minimum-norm",
    "null-calibration",
    "wrong-roundings",
    "margin-against-n",
    "hardest-column",
)
COMPARED = (
    "map",
    "parts",
    "certificates",
    "null",
    "stragglers",
    "falsifier",
    "margins",
    "hardest",
    "attack",
    "minimum_norm",
    "calls",
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
    "draw_recovery_minimum_norm": (
        "exact_recovery_minimum_norm",
        "exact_recovery_minimum_norm",
        "minimum-norm",
        "The minimum-norm fit gives the outputs and other weights",
    ),
    "draw_recovery_calls": (
        "exact_recovery_calls",
        "exact_recovery_calls",
        "wrong-roundings",
        "How often a value of small margin is wrong",
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


# One block of the model after the other is observed and solved; each solver is a process of its own, which is given the observations of that block and
# nothing else: neither the checkpoint nor its manifest.
rule recover_weights:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
    output:
        directory("results/{model}/{revision}/exact_recovery/solution"),
    log:
        "logs/recover_weights/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/recover_weights/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=240,
    params:
        code=code_of("recover_weights.py"),
        entry=entry_part("config"),
        rows=protocol("rows"),
        seed=protocol("seed"),
        published=protocol("published"),
        arithmetic="torch",
        kernels={},
    script:
        "../scripts/recover_weights.py"


# The same on what stands in for another machine, observations included: another BLAS, another LAPACK, the least kernels of each library that a processor
# of this kind has, and one thread. The bits must not depend on them.
use rule recover_weights as recover_weights_again with:
    output:
        temp(directory("results/{model}/{revision}/exact_recovery/second-route")),
    log:
        "logs/recover_weights_again/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/recover_weights_again/{model}/{revision}.tsv"
    threads: 1
    params:
        code=code_of("recover_weights.py"),
        entry=entry_part("config"),
        rows=protocol("rows"),
        seed=protocol("seed"),
        published=protocol("published"),
        arithmetic="scipy",
        kernels=OTHER_KERNELS,


# The same by jobs, for the models under `exact_recovery.block_jobs`: a part is observed after the one before, solved beside the others, and the run goes
# on where it was stopped.
rule observe_part:
    input:
        unpack(relay_before),
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
    output:
        observations=temp(
            directory("results/{model}/{revision}/exact_recovery/observations/{part}")
        ),
        relay=temp(directory("results/{model}/{revision}/exact_recovery/relay/{part}")),
    log:
        "logs/observe_part/{model}/{revision}/{part}.log",
    benchmark:
        "logs/benchmarks/observe_part/{model}/{revision}/{part}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=part_memory,
        runtime=240,
    params:
        code=code_of("observe_part.py"),
        entry=entry_part("config"),
        rows=protocol("rows"),
        seed=protocol("seed"),
        published=protocol("published"),
        parts=lambda wildcards: BLOCK_JOBS[wildcards.model],
    script:
        "../scripts/observe_part.py"


# Before the next part is observed: observations do not pile up.
rule solve_part:
    input:
        observations="results/{model}/{revision}/exact_recovery/observations/{part}",
    output:
        temp(directory("results/{model}/{revision}/exact_recovery/solutions/{part}")),
    log:
        "logs/solve_part/{model}/{revision}/{part}.log",
    benchmark:
        "logs/benchmarks/solve_part/{model}/{revision}/{part}.tsv"
    priority: 1
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=solver_memory,
        runtime=240,
    params:
        code=code_of("solve_part.py"),
    script:
        "../scripts/solve_part.py"


rule join_parts:
    input:
        part_solutions,
    output:
        directory("results/{model}/{revision}/exact_recovery/solution"),
    log:
        "logs/join_parts/{model}/{revision}.log",
    wildcard_constraints:
        model=alternatives(BLOCK_JOBS),
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=joined_memory,
        runtime=60,
    params:
        code=code_of("join_parts.py"),
    script:
        "../scripts/join_parts.py"


ruleorder: join_parts > recover_weights


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
        rows=protocol("rows"),
        seed=protocol("seed"),
        published=protocol("published"),
        outputs=protocol("fresh_outputs"),
        chunks=protocol("most_chunks"),
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
