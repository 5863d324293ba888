COMPARED_PAIRS = {
    pair_name(*compared_pair(entry, number)): entry
    for number, entry in enumerate(config["checkpoint_comparison"]["pairs"])
}
COMPARISONS = "results/checkpoint_comparison"
PAIR = "{model_a}@{revision_a}__{model_b}@{revision_b}"
COMPARISON_KINDS = ("inventory", "alignment", "kernels", "nulls")
# rule -> what it draws of one pair
COMPARISON_DRAWN = {
    drawn_by: drawing(
        f"checkpoint_comparison_{figure}",
        f"{COMPARISONS}/{PAIR}/{kind}.parquet",
        f"checkpoint_comparison/{PAIR}-{figure}",
        result,
        category="Checkpoint comparison",
        pair="{model_a} {revision_a} to {model_b} {revision_b}",
    )
    for drawn_by, figure, kind, result in (
        ("draw_change_map", "map", "inventory", "Change by block and part"),
        ("draw_head_grid", "heads", "kernels", "Change by head"),
        ("draw_null_plots", "nulls", "nulls", "p-values"),
    )
}
COMPARISON_TABLES = [
    f"{COMPARISONS}/{pair}/{kind}.parquet" for pair in COMPARED_PAIRS for kind in COMPARISON_KINDS
]
COMPARISON_TABLES += [f"{COMPARISONS}/{pair}/decision.json" for pair in COMPARED_PAIRS]
COMPARISON_TABLES += (
    [f"{TABLES}/checkpoint_comparison.{suffix}" for suffix in ("parquet", "csv")]
    if COMPARED_PAIRS
    else []
)
COMPARISON_FIGURES = [
    f"{FIGURES}/checkpoint_comparison/{pair}-{figure}.pdf"
    for pair in COMPARED_PAIRS
    for figure in ("map", "heads", "nulls")
]


wildcard_constraints:
    model_a=alternatives(MODELS),
    model_b=alternatives(MODELS),
    revision_a=alternatives({revision for _, revision in expand(MODELS)}),
    revision_b=alternatives({revision for _, revision in expand(MODELS)}),


rule compare_checkpoints:
    input:
        checkpoint_a="results/{model_a}/{revision_a}/checkpoint",
        manifest_a="results/{model_a}/{revision_a}/checkpoint.json",
        checkpoint_b="results/{model_b}/{revision_b}/checkpoint",
        manifest_b="results/{model_b}/{revision_b}/checkpoint.json",
        probes=config["checkpoint_comparison"]["probes"],
    output:
        **{kind: f"{COMPARISONS}/{PAIR}/{kind}.parquet" for kind in COMPARISON_KINDS},
        decision=f"{COMPARISONS}/{PAIR}/decision.json",
    log:
        f"logs/compare_checkpoints/{PAIR}.log",
    benchmark:
        f"logs/benchmarks/compare_checkpoints/{PAIR}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=comparison_memory,
        runtime=60,
    params:
        code=code_of("compare_checkpoints.py"),
        entry_a=entry_config("a"),
        entry_b=entry_config("b"),
        probe=declared_probe,
        draws=config["checkpoint_comparison"]["draws"],
        seed=config["checkpoint_comparison"]["seed"],
    script:
        "../scripts/compare_checkpoints.py"


rule tabulate_comparison:
    input:
        **{
            kind: [f"{COMPARISONS}/{pair}/{kind}.parquet" for pair in COMPARED_PAIRS]
            for kind in ("inventory", "alignment", "nulls")
        },
        decision=[f"{COMPARISONS}/{pair}/decision.json" for pair in COMPARED_PAIRS],
    output:
        checkpoint_comparison=f"{TABLES}/checkpoint_comparison.parquet",
        checkpoint_comparison_csv=f"{TABLES}/checkpoint_comparison.csv",
    log:
        f"logs/{TABLES}/checkpoint_comparison.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        tables=["checkpoint_comparison"],
    script:
        "../scripts/tabulate.py"
