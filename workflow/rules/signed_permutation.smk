# what is measured -> the checkpoints of which it is
GAUGED = {
    kind: listed("signed_permutation", key)
    for kind, key in (
        ("equivalence", "models"),
        ("recovery", "recovered"),
        ("audit", "audited"),
        ("transport", "audited"),
    )
}
# (model, revision) -> the checkpoints of its shape that it is matched with, as `model@revision`
ALIGNED = {
    listed_checkpoints(first, "signed_permutation.aligned")[0]: [
        "@".join(pair)
        for item in others
        for pair in listed_checkpoints(item, "signed_permutation.aligned")
    ]
    for first, *others in config["signed_permutation"]["aligned"]
}
if len(ALIGNED) < len(config["signed_permutation"]["aligned"]):
    fail("signed_permutation.aligned: two lists begin with the same checkpoint; join them into one")
GAUGED["alignment"] = list(ALIGNED)
GAUGED["holonomy"] = [
    pair for pair, others in ALIGNED.items() if len(others) > 1
]  # a cycle needs three
# table of results -> what of each checkpoint it is made from
GAUGE_TABLES = {
    "group_boundary": "equivalence",
    "recovered_gauges": "recovery",
    "probe_budget": "recovery",
    "alignment_stability": "alignment",
    "alignment_cycles": "holonomy",
    "name_audit": "audit",
    "carried_artifacts": "transport",
}
# figure -> the table that it is drawn from, and its name in the report
GAUGE_DRAWINGS = {
    "group_boundary": ("group_boundary", "What changes the outputs, and what does not"),
    "group_boundary_figure": ("group_boundary", "Inside and outside the group"),
    "recovered_gauges": ("recovered_gauges", "Recovery of recorded gauges"),
    "probe_budget": ("probe_budget", "How many probes a recorded gauge needs"),
    "alignment_stability": ("alignment_stability", "Stability of natural alignments"),
    "alignment_cycles": ("alignment_cycles", "Holonomy of natural alignments"),
    "name_audit": ("name_audit", "Coordinate names before and after a gauge"),
    "carried_artifacts": ("carried_artifacts", "Artifacts carried along with a gauge"),
}
MADE = {table: kind for table, kind in GAUGE_TABLES.items() if gauge_files(kind)}
DRAWN = {figure: names for figure, names in GAUGE_DRAWINGS.items() if names[0] in MADE}
GAUGE_TABLE_TARGETS = [
    f"{TABLES}/{table}.{suffix}" for table in MADE for suffix in ("parquet", "csv")
] + [f"{FIGURES}/signed_permutation/{figure}.pdf" for figure in DRAWN if figure in MADE]
GAUGE_FIGURE_TARGETS = [
    f"{FIGURES}/signed_permutation/{figure}.pdf" for figure in DRAWN if figure not in MADE
]
AUDIT_PAGES = [
    f"{FIGURES}/signed_permutation/audit/{model}-{revision}.pdf"
    for model, revision in GAUGED["audit"]
]


rule measure_equivalence:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        "results/{model}/{revision}/signed_permutation/equivalence.parquet",
    log:
        "logs/measure_equivalence/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/measure_equivalence/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=changed_memory,
        runtime=240,
    params:
        code=code_of("measure_equivalence.py"),
        entry=entry_part("modality", "config"),
        seeds=config["signed_permutation"]["seeds"]["equivalence"],
        forward_dtypes=config["signed_permutation"]["forward_dtypes"],
        sequences=config["signed_permutation"]["sequences"],
        length=config["signed_permutation"]["length"],
    script:
        "../scripts/measure_equivalence.py"


rule recover_gauges:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        "results/{model}/{revision}/signed_permutation/recovery.parquet",
    log:
        "logs/recover_gauges/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/recover_gauges/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float32"),
        runtime=240,
    params:
        code=code_of("recover_gauges.py"),
        entry=entry_part("modality", "config"),
        seeds=config["signed_permutation"]["seeds"]["recovery"],
        budgets=config["signed_permutation"]["budgets"]["recovery"],
    script:
        "../scripts/recover_gauges.py"


rule audit_names:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        audit="results/{model}/{revision}/signed_permutation/audit.parquet",
        transport="results/{model}/{revision}/signed_permutation/transport.parquet",
    log:
        "logs/audit_names/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/audit_names/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=240,
    params:
        code=code_of("audit_names.py"),
        entry=entry_part("modality", "config"),
        seeds={name: config["signed_permutation"]["seeds"][name] for name in ("audit", "transport")},
        top=config["signed_permutation"]["top"],
        sequences=config["signed_permutation"]["sequences"],
        length=config["signed_permutation"]["length"],
    script:
        "../scripts/audit_names.py"


rule align_checkpoints:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
        others=aligned_checkpoints,
    output:
        alignment="results/{model}/{revision}/signed_permutation/alignment.parquet",
        holonomy="results/{model}/{revision}/signed_permutation/holonomy.parquet",
    log:
        "logs/align_checkpoints/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/align_checkpoints/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float32"),
        runtime=240,
    params:
        code=code_of("align_checkpoints.py"),
        entry=entry_part("modality", "config"),
        configs=aligned_configs,
        budgets=config["signed_permutation"]["budgets"]["alignment"],
    script:
        "../scripts/align_checkpoints.py"


rule tabulate_gauges:
    input:
        **{kind: gauge_files(kind) for kind in MADE.values()},
    output:
        **{table: f"{TABLES}/{table}.parquet" for table in MADE},
        **{f"{table}_csv": f"{TABLES}/{table}.csv" for table in MADE},
    log:
        f"logs/{TABLES}/signed_permutation.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate.py"),
        tables=list(MADE),
    script:
        "../scripts/tabulate.py"


rule draw_gauges:
    input:
        **{table: f"{TABLES}/{table}.parquet" for table in MADE},
    output:
        **{f"{figure}_pdf": f"{FIGURES}/signed_permutation/{figure}.pdf" for figure in DRAWN},
        **{
            f"{figure}_svg": report(
                f"{FIGURES}/signed_permutation/{figure}.svg",
                caption=f"../report/{figure}.rst",
                category="Signed permutations",
                labels={"result": title},
            )
            for figure, (_, title) in DRAWN.items()
        },
    log:
        f"logs/{FIGURES}/signed_permutation/drawn.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw_gauges.py"),
        figures={figure: table for figure, (table, _) in DRAWN.items()},
    script:
        "../scripts/draw_gauges.py"


rule draw_audit:
    input:
        equivalence="results/{model}/{revision}/signed_permutation/equivalence.parquet",
        recovery="results/{model}/{revision}/signed_permutation/recovery.parquet",
        audit="results/{model}/{revision}/signed_permutation/audit.parquet",
        transport="results/{model}/{revision}/signed_permutation/transport.parquet",
    output:
        pdf=f"{FIGURES}/signed_permutation/audit/{{model}}-{{revision}}.pdf",
        svg=f"{FIGURES}/signed_permutation/audit/{{model}}-{{revision}}.svg",
    log:
        f"logs/{FIGURES}/signed_permutation/audit/{{model}}-{{revision}}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw_audit.py"),
    script:
        "../scripts/draw_audit.py"
