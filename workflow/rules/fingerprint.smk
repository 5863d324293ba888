rule compute_fingerprint:
    input:
        manifest="results/{model}/{revision}/checkpoint.json",
        moments=moment_folders,
    output:
        fingerprint="results/{model}/{revision}/fingerprint.parquet",
        schur="results/{model}/{revision}/schur.parquet",
        stacks="results/{model}/{revision}/stacks.parquet",
        summary="results/{model}/{revision}/summary.parquet",
        mechanism="results/{model}/{revision}/mechanism.parquet",
        directions="results/{model}/{revision}/dead_directions.safetensors",
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
        forward_dtypes=lambda wildcards: list(captured_groups(wildcards)),
        force_cov32=capture_option("force_cov32"),
    script:
        "../scripts/compute_fingerprint.py"
