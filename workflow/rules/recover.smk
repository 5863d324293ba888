RECOVERY_TARGETS = [f"{TABLES}/{name}.{suffix}" for name in ("recovery", "recovery_calibration") for suffix in ("parquet", "csv")] + [
    f"{FIGURES}/exact-recovery/{name}.pdf" for name in ("map", "null-calibration")
]


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
    threads: 2
    resources:
        mem_mb=model_memory,
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
    threads: 2
    resources:
        mem_mb=solver_memory,
        runtime=120,
    params:
        code=code_of("solve_weights.py"),
    script:
        "../scripts/solve_weights.py"


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
    threads: 2
    resources:
        mem_mb=model_memory,
        runtime=240,
    params:
        code=code_of("close_stragglers.py"),
        entry=entry_part("config"),
        rows=config["recovery"]["rows"],
        seed=config["recovery"]["seed"] + 1,
    script:
        "../scripts/close_stragglers.py"


rule compare_recovery:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        closed="results/{model}/{revision}/recovery/closed",
    output:
        map="results/{model}/{revision}/recovery/map.parquet",
        certificates="results/{model}/{revision}/recovery/certificates.parquet",
        null="results/{model}/{revision}/recovery/null.parquet",
        stragglers="results/{model}/{revision}/recovery/stragglers.parquet",
        falsifier="results/{model}/{revision}/recovery/falsifier.parquet",
    log:
        "logs/compare_recovery/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/compare_recovery/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=model_memory,
        runtime=20,
    params:
        code=code_of("compare_recovery.py"),
        entry=entry_part("config"),
    script:
        "../scripts/compare_recovery.py"


rule tabulate_recovery:
    input:
        maps=recovery_files("map"),
        nulls=recovery_files("null"),
    output:
        recovery=f"{TABLES}/recovery.parquet",
        recovery_csv=f"{TABLES}/recovery.csv",
        calibration=f"{TABLES}/recovery_calibration.parquet",
        calibration_csv=f"{TABLES}/recovery_calibration.csv",
    log:
        f"logs/{TABLES}/recovery.log",
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
