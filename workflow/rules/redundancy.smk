REDUNDANCY = os.path.join("results/redundancy", config["study"]["name"]).rstrip("/")
COUNTED = listed("redundancy", "models")
# figure -> its name in the report
REDUNDANCY_RESULTS = {
    "counts": "Redundant directions, claimed and corrected",
    "symmetries": "What makes parameters redundant",
    "jacobian": "How the ranks were decided",
    "falsifier": "The claimed rotation, tried",
    "checks": "Symmetries on real checkpoints",
}
# rule -> what it draws
REDUNDANCY_DRAWN = {
    f"draw_redundancy_{figure}": drawing(
        f"redundancy_{figure}",
        f"{REDUNDANCY}/{figure}.parquet",
        f"redundancy/{figure}",
        result,
        category="Redundancy",
    )
    for figure, result in REDUNDANCY_RESULTS.items()
}
REDUNDANCY_TABLES = [
    f"{REDUNDANCY}/{name}"
    for name in (
        "counts.parquet",
        "counts.csv",
        "symmetries.parquet",
        "checks.parquet",
        "falsifier.parquet",
        "hessian.parquet",
    )
]
REDUNDANCY_FIGURES = [f"{FIGURES}/redundancy/{figure}.pdf" for figure in REDUNDANCY_RESULTS]


# One job for both: importing torch costs more than trying the claim.
rule measure_small_models:
    input:
        shapes=config["redundancy"]["small"],
    output:
        jacobian=f"{REDUNDANCY}/jacobian.parquet",
        falsifier=f"{REDUNDANCY}/falsifier.parquet",
        hessian=f"{REDUNDANCY}/hessian.parquet",
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
        checks=[
            f"results/{model}/{revision}/redundancy/checks.parquet" for model, revision in COUNTED
        ],
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
