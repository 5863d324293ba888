rule build_corpus:
    input:
        wheel=corpus_wheel,
    output:
        "results/corpora/{corpus}.parquet",
    log:
        "logs/build_corpus/{corpus}.log",
    priority: 3
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        code=code_of("build_corpus.py"),
    script:
        "../scripts/build_corpus.py"


rule prepare_calibration:
    input:
        checkpoint="results/{model}/{revision}/checkpoint",
        corpus=calibration_corpus,
        tokenizer=tokenizer_checkpoint,
    output:
        "results/{model}/{revision}/calibration.parquet",
    log:
        "logs/prepare_calibration/{model}/{revision}.log",
    conda:
        "../../envs/pipeline.yaml"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        code=code_of("prepare_calibration.py"),
        entry=entry_part("source", "modality", "calibration", "tokenizer", "config"),
        sequences=calibration_option("sequences"),
        length=calibration_option("length"),
        seed=config["calibration"]["seed"],
        bos=calibration_option("bos"),
    script:
        "../scripts/prepare_calibration.py"
