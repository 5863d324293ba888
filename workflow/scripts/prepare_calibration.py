"""Cut a corpus into the sequences that enter one checkpoint."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.calibration.prepare import prepare
    from normgauge.calibration.settings import Bos, Settings
    from normgauge.checkpoints.configuration import open_config

    set_arithmetic(snakemake.threads)
    params, entry, folder = snakemake.params, snakemake.params.entry, snakemake.input.checkpoint
    prepare(
        entry,
        folder,
        snakemake.input.get("corpus") or None,
        snakemake.output[0],
        config=open_config(folder, entry.get("config")),
        settings=Settings(params.sequences, params.length, params.seed, Bos(params.bos)),
        tokenizer_folder=snakemake.input.get("tokenizer") or None,
    )
