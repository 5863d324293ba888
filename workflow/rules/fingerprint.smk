rule compute_fingerprint:
    input:
        manifest="results/{model}/{revision}/checkpoint.json",
        checkpoint="results/{model}/{revision}/checkpoint",
        moments=moment_folders,
    output:
        fingerprint="results/{model}/{revision}/fingerprint.parquet",
        schur="results/{model}/{revision}/schur.parquet",
        stacks="results/{model}/{revision}/stacks.parquet",
        summary="results/{model}/{revision}/summary.parquet",
    log:
        "logs/compute_fingerprint/{model}/{revision}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=moments_memory,
        runtime=60,
    params:
        code=code_of("compute_fingerprint.py"),
        entry=entry_part("modality", "config"),
    script:
        "../scripts/compute_fingerprint.py"
