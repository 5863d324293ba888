"""Write the recovery tables of all checkpoints: the maps and their sums, residuals at wrong places,
margins, and the hardest columns.
"""

from _script import reporting

with reporting(snakemake):
    from normgauge.exact_recovery.tabulate import write_tables

    write_tables(snakemake.input, snakemake.output)
