"""Turn a corpus into one parquet file, a row per document."""

from _script import reporting

with reporting(snakemake):
    from normgauge.calibration.corpora import build_corpus

    build_corpus(
        snakemake.wildcards.corpus, snakemake.input.get("wheel") or None, snakemake.output[0]
    )
