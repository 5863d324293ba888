rule capture_moments:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        directory("results/{model}/{revision}/moments/{shard}-of-{shards}"),
    log:
        "logs/capture_moments/{model}/{revision}/{shard}-of-{shards}.log",
    benchmark:
        "logs/benchmarks/capture_moments/{model}/{revision}/{shard}-of-{shards}.tsv"
    # Before twins: these can run beside the fingerprints, which stand behind the captures.
    priority: 1
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=capture_memory,
        runtime=lambda wildcards: 240 * len(captured_groups(wildcards)),
        gpu=0,
    params:
        code=code_of("capture_moments.py"),
        entry=entry_part("modality", "config"),
        forward_dtypes=captured_groups,
        schur_sites=capture_option("schur_sites"),
        accumulation=capture_option("accumulation"),
        batch_size=capture_option("batch_size"),
        jackknife_groups=capture_option("jackknife_groups"),
    script:
        "../scripts/capture_moments.py"


rule measure_reinitialised:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        manifest="results/{model}/{revision}/checkpoint.json",
        calibration="results/{model}/{revision}/calibration.parquet",
    output:
        fingerprint="results/{model}/{revision}/reinitialised/fingerprint.parquet",
        schur="results/{model}/{revision}/reinitialised/schur.parquet",
        stacks="results/{model}/{revision}/reinitialised/stacks.parquet",
    log:
        "logs/measure_reinitialised/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/measure_reinitialised/{model}/{revision}.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=twins_memory,
        runtime=480,
        gpu=0,
    params:
        code=code_of("measure_reinitialised.py"),
        entry=entry_part("modality", "config"),
        seeds=config["reinitialised"]["seeds"],
        forward_dtypes=config["reinitialised"]["forward_dtypes"],
        schur_sites=config["reinitialised"]["schur_sites"],
        accumulation=capture_option("accumulation"),
        force_cov32=capture_option("force_cov32"),
        batch_size=capture_option("batch_size"),
        jackknife_groups=capture_option("jackknife_groups"),
    script:
        "../scripts/measure_reinitialised.py"
