# table of results -> (what of each checkpoint it is made from, name of the figure)
GAUGE_TABLES = {
    "gauge_table2": ("equivalence", "table2"),
    "gauge_figure1": ("equivalence", "figure1"),
    "gauge_table15": ("recovery", "table15"),
    "gauge_table11": ("recovery", "table11"),
    "gauge_table13": ("alignment", "table13"),
    "gauge_cycles": ("holonomy", "holonomy"),
    "gauge_table8": ("audit", "table8"),
    "gauge_carried": ("transport", "carried"),
}
MADE = {table: names for table, names in GAUGE_TABLES.items() if gauge_files(names[0])}
GAUGE_TABLE_TARGETS = [f"{TABLES}/{table}.{suffix}" for table in MADE for suffix in ("parquet", "csv")] + [
    f"{FIGURES}/signed-permutation/{name}.pdf" for _, name in MADE.values() if name != "figure1"
]
GAUGE_FIGURE_TARGETS = [f"{FIGURES}/signed-permutation/{name}.pdf" for _, name in MADE.values() if name == "figure1"]
AUDIT_PAGES = [f"{FIGURES}/signed-permutation/audit/{model}-{revision}.pdf" for model, revision in GAUGED["audit"]]


rule measure_equivalence:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        "results/{model}/{revision}/gauge/equivalence.parquet",
    log:
        "logs/measure_equivalence/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/measure_equivalence/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=model_memory("float64"),
        runtime=240,
    params:
        code=code_of("measure_equivalence.py"),
        entry=entry_part("modality", "config"),
        seeds=config["gauge"]["seeds"]["equivalence"],
        forward_dtypes=config["gauge"]["forward_dtypes"],
        sequences=config["gauge"]["sequences"],
        length=config["gauge"]["length"],
    script:
        "../scripts/measure_equivalence.py"


rule recover_gauges:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        "results/{model}/{revision}/gauge/recovery.parquet",
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
        seeds=config["gauge"]["seeds"]["recovery"],
        budgets=config["gauge"]["budgets"]["recovery"],
    script:
        "../scripts/recover_gauges.py"


rule audit_names:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        audit="results/{model}/{revision}/gauge/audit.parquet",
        transport="results/{model}/{revision}/gauge/transport.parquet",
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
        seeds={name: config["gauge"]["seeds"][name] for name in ("audit", "transport")},
        top=config["gauge"]["top"],
        sequences=config["gauge"]["sequences"],
        length=config["gauge"]["length"],
    script:
        "../scripts/audit_names.py"


rule align_checkpoints:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
        others=aligned_checkpoints,
    output:
        alignment="results/{model}/{revision}/gauge/alignment.parquet",
        holonomy="results/{model}/{revision}/gauge/holonomy.parquet",
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
        budgets=config["gauge"]["budgets"]["alignment"],
    script:
        "../scripts/align_checkpoints.py"


rule tabulate_gauges:
    input:
        **{kind: gauge_files(kind) for kind, _ in MADE.values()},
    output:
        **{table: f"{TABLES}/{table}.parquet" for table in MADE},
        **{f"{table}_csv": f"{TABLES}/{table}.csv" for table in MADE},
    log:
        f"logs/{TABLES}/gauge.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("tabulate_gauges.py"),
        tables={table: kind for table, (kind, _) in MADE.items()},
    script:
        "../scripts/tabulate_gauges.py"


rule draw_gauges:
    input:
        **{table: f"{TABLES}/{table}.parquet" for table in MADE},
    output:
        **{f"{table}_pdf": f"{FIGURES}/signed-permutation/{name}.pdf" for table, (_, name) in MADE.items()},
        **{
            f"{table}_svg": report(
                f"{FIGURES}/signed-permutation/{name}.svg",
                caption=f"../report/{table}.rst",
                category="Signed permutations",
                labels={"result": name},
            )
            for table, (_, name) in MADE.items()
        },
    log:
        f"logs/{FIGURES}/signed-permutation/drawn.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=20,
    params:
        code=code_of("draw_gauges.py"),
        tables=list(MADE),
    script:
        "../scripts/draw_gauges.py"


rule draw_audit:
    input:
        equivalence="results/{model}/{revision}/gauge/equivalence.parquet",
        recovery="results/{model}/{revision}/gauge/recovery.parquet",
        audit="results/{model}/{revision}/gauge/audit.parquet",
        transport="results/{model}/{revision}/gauge/transport.parquet",
    output:
        pdf=f"{FIGURES}/signed-permutation/audit/{{model}}-{{revision}}.pdf",
        svg=f"{FIGURES}/signed-permutation/audit/{{model}}-{{revision}}.svg",
    log:
        f"logs/{FIGURES}/signed-permutation/audit/{{model}}-{{revision}}.log",
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
