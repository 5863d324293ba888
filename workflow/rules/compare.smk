COMPARISON_KINDS = ("inventory", "alignment", "kernels", "nulls")
COMPARISON_TABLES = [f"results/compare/{pair}/{kind}.parquet" for pair in COMPARED_PAIRS for kind in COMPARISON_KINDS]
COMPARISON_TABLES += [f"results/compare/{pair}/decision.json" for pair in COMPARED_PAIRS]
COMPARISON_TABLES += [f"{TABLES}/comparison.{suffix}" for suffix in ("parquet", "csv")] if COMPARED_PAIRS else []
COMPARISON_FIGURES = [
    f"{FIGURES}/checkpoint-diff/{pair}-{figure}.pdf" for pair in COMPARED_PAIRS for figure in ("map", "heads", "offsets", "nulls")
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
        probes=config["comparison"]["probes"],
    output:
        inventory="results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/inventory.parquet",
        alignment="results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/alignment.parquet",
        kernels="results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/kernels.parquet",
        nulls="results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/nulls.parquet",
        decision="results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/decision.json",
    log:
        "logs/compare_checkpoints/{model_a}@{revision_a}__{model_b}@{revision_b}.log",
    benchmark:
        "logs/benchmarks/compare_checkpoints/{model_a}@{revision_a}__{model_b}@{revision_b}.tsv"
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
        draws=config["comparison"]["draws"],
        seed=config["comparison"]["seed"],
    script:
        "../scripts/compare_checkpoints.py"


rule tabulate_comparison:
    input:
        inventories=[f"results/compare/{pair}/inventory.parquet" for pair in COMPARED_PAIRS],
        alignments=[f"results/compare/{pair}/alignment.parquet" for pair in COMPARED_PAIRS],
        nulls=[f"results/compare/{pair}/nulls.parquet" for pair in COMPARED_PAIRS],
        decisions=[f"results/compare/{pair}/decision.json" for pair in COMPARED_PAIRS],
    output:
        parquet=f"{TABLES}/comparison.parquet",
        csv=f"{TABLES}/comparison.csv",
    log:
        f"logs/{TABLES}/comparison.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate_comparison.py"),
    script:
        "../scripts/tabulate_comparison.py"


rule draw_change_map:
    input:
        "results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/inventory.parquet",
    output:
        pdf=f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-map.pdf",
        svg=report(
            f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-map.svg",
            caption="../report/comparison_map.rst",
            category="Checkpoint comparison",
            labels={"pair": "{model_a} {revision_a} to {model_b} {revision_b}", "figure": "Change by block and part"},
        ),
    log:
        f"logs/{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-map.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw_comparison.py"),
        figure="map",
    script:
        "../scripts/draw_comparison.py"


use rule draw_change_map as draw_head_grid with:
    input:
        "results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/kernels.parquet",
    output:
        pdf=f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-heads.pdf",
        svg=report(
            f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-heads.svg",
            caption="../report/comparison_heads.rst",
            category="Checkpoint comparison",
            labels={"pair": "{model_a} {revision_a} to {model_b} {revision_b}", "figure": "Change by head"},
        ),
    log:
        f"logs/{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-heads.log",
    params:
        code=code_of("draw_comparison.py"),
        figure="heads",


use rule draw_head_grid as draw_offset_curves with:
    output:
        pdf=f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-offsets.pdf",
        svg=report(
            f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-offsets.svg",
            caption="../report/comparison_offsets.rst",
            category="Checkpoint comparison",
            labels={"pair": "{model_a} {revision_a} to {model_b} {revision_b}", "figure": "Attention over distance"},
        ),
    log:
        f"logs/{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-offsets.log",
    params:
        code=code_of("draw_comparison.py"),
        figure="offsets",


use rule draw_change_map as draw_null_plots with:
    input:
        "results/compare/{model_a}@{revision_a}__{model_b}@{revision_b}/nulls.parquet",
    output:
        pdf=f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-nulls.pdf",
        svg=report(
            f"{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-nulls.svg",
            caption="../report/comparison_nulls.rst",
            category="Checkpoint comparison",
            labels={"pair": "{model_a} {revision_a} to {model_b} {revision_b}", "figure": "p-values"},
        ),
    log:
        f"logs/{FIGURES}/checkpoint-diff/{{model_a}}@{{revision_a}}__{{model_b}}@{{revision_b}}-nulls.log",
    params:
        code=code_of("draw_comparison.py"),
        figure="nulls",
