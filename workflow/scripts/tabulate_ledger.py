"""Write the ledger of published numbers from the claims and the tables of all studies."""

from _script import reporting

with reporting(snakemake):
    from normgauge.ledger.table import write_ledger

    tables = {
        name: [files] if isinstance(files, str) else list(files)
        for name, files in snakemake.input.items()
    }
    tables.pop("numbers")
    write_ledger(tables.pop("claims"), tables, snakemake.output.parquet, snakemake.output.csv)
