REDUNDANCY = os.path.join("results/redundancy", config["study"]["name"]).rstrip("/")
REDUNDANCY_TABLES = [
    f"{REDUNDANCY}/{name}" for name in ("counts.parquet", "counts.csv", "symmetries.parquet", "checks.parquet", "falsifier.parquet")
]
REDUNDANCY_FIGURES = [f"{FIGURES}/redundancy/{name}.pdf" for name in ("counts", "symmetries", "jacobian", "falsifier", "checks")]


# One job for both: importing torch costs more than trying the claim.
rule measure_small_models:
    input:
        shapes=config["redundancy"]["small"],
    output:
        jacobian=f"{REDUNDANCY}/jacobian.parquet",
        falsifier=f"{REDUNDANCY}/falsifier.parquet",
    log:
        f"logs/{REDUNDANCY}/small_models.log",
    benchmark:
        f"logs/benchmarks/{REDUNDANCY}/small_models.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("measure_small_models.py"),
        seed=config["redundancy"]["seed"],
    script:
        "../scripts/measure_small_models.py"


rule check_symmetries:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
    output:
        "results/{model}/{revision}/redundancy/checks.parquet",
    log:
        "logs/check_symmetries/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/check_symmetries/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=60,
    params:
        code=code_of("check_symmetries.py"),
        entry=entry_part("config"),
        seed=config["redundancy"]["seed"],
    script:
        "../scripts/check_symmetries.py"


rule count_redundancy:
    input:
        shapes=config["redundancy"]["shapes"],
        small=config["redundancy"]["small"],
        checkpoints=[f"results/{model}/{revision}/checkpoint" for model, revision in COUNTED],
        jacobian=f"{REDUNDANCY}/jacobian.parquet",
        checks=[f"results/{model}/{revision}/redundancy/checks.parquet" for model, revision in COUNTED],
        claims=config["redundancy"]["claims"],
    output:
        counts=f"{REDUNDANCY}/counts.parquet",
        counts_csv=f"{REDUNDANCY}/counts.csv",
        symmetries=f"{REDUNDANCY}/symmetries.parquet",
        checks=f"{REDUNDANCY}/checks.parquet",
    log:
        f"logs/{REDUNDANCY}/counts.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("count_redundancy.py"),
        names=counted_names(),
        entries=[MODELS[model].get("config", {}) for model, _ in COUNTED],
    script:
        "../scripts/count_redundancy.py"


rule draw_redundancy_counts:
    input:
        f"{REDUNDANCY}/counts.parquet",
    output:
        pdf=f"{FIGURES}/redundancy/counts.pdf",
        svg=report(
            f"{FIGURES}/redundancy/counts.svg",
            caption="../report/redundancy_counts.rst",
            category="Redundancy",
            labels={"table": "Redundant directions, claimed and corrected"},
        ),
    log:
        f"logs/{FIGURES}/redundancy/counts.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw.py"),
        figure="redundancy_counts",
    script:
        "../scripts/draw.py"


use rule draw_redundancy_counts as draw_redundancy_symmetries with:
    input:
        f"{REDUNDANCY}/symmetries.parquet",
    output:
        pdf=f"{FIGURES}/redundancy/symmetries.pdf",
        svg=report(
            f"{FIGURES}/redundancy/symmetries.svg",
            caption="../report/redundancy_symmetries.rst",
            category="Redundancy",
            labels={"figure": "What makes parameters redundant"},
        ),
    log:
        f"logs/{FIGURES}/redundancy/symmetries.log",
    params:
        code=code_of("draw.py"),
        figure="redundancy_symmetries",


use rule draw_redundancy_counts as draw_redundancy_jacobian with:
    input:
        f"{REDUNDANCY}/jacobian.parquet",
    output:
        pdf=f"{FIGURES}/redundancy/jacobian.pdf",
        svg=report(
            f"{FIGURES}/redundancy/jacobian.svg",
            caption="../report/redundancy_jacobian.rst",
            category="Redundancy",
            labels={"figure": "How the ranks were decided"},
        ),
    log:
        f"logs/{FIGURES}/redundancy/jacobian.log",
    params:
        code=code_of("draw.py"),
        figure="redundancy_jacobian",


use rule draw_redundancy_counts as draw_redundancy_falsifier with:
    input:
        f"{REDUNDANCY}/falsifier.parquet",
    output:
        pdf=f"{FIGURES}/redundancy/falsifier.pdf",
        svg=report(
            f"{FIGURES}/redundancy/falsifier.svg",
            caption="../report/redundancy_falsifier.rst",
            category="Redundancy",
            labels={"table": "The claimed rotation, tried"},
        ),
    log:
        f"logs/{FIGURES}/redundancy/falsifier.log",
    params:
        code=code_of("draw.py"),
        figure="redundancy_falsifier",


use rule draw_redundancy_counts as draw_redundancy_checks with:
    input:
        f"{REDUNDANCY}/checks.parquet",
    output:
        pdf=f"{FIGURES}/redundancy/checks.pdf",
        svg=report(
            f"{FIGURES}/redundancy/checks.svg",
            caption="../report/redundancy_checks.rst",
            category="Redundancy",
            labels={"table": "Symmetries on real checkpoints"},
        ),
    log:
        f"logs/{FIGURES}/redundancy/checks.log",
    params:
        code=code_of("draw.py"),
        figure="redundancy_checks",
