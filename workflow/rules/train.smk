rule train_checkpoint:
    input:
        corpus=calibration_corpus,
    output:
        checkpoint=directory("results/{model}/{revision}/checkpoint"),
        manifest="results/{model}/{revision}/checkpoint.json",
    log:
        "logs/train_checkpoint/{model}/{revision}.log",
    benchmark:
        "logs/benchmarks/train_checkpoint/{model}/{revision}.tsv"
    wildcard_constraints:
        model=alternatives(TRAINED),
    # The longest jobs, and others wait for them: started last, they would run alone.
    priority: 2
    conda:
        "../../envs/pipeline.yaml"
    threads: config["threads"]
    resources:
        mem_mb=4000,
        runtime=240,
        gpu=0,
    params:
        code=code_of("train_checkpoint.py"),
        entry=entry_part("source", "modality", "calibration", "config", "objective", "licence"),
    script:
        "../scripts/train_checkpoint.py"
