"""The least example, and the rules by which tensors and artifacts move."""

from _script import reporting

with reporting(snakemake):
    from normgauge.signed_permutation.laws_study import state_laws

    made = snakemake.output
    output = {
        name: {"parquet": made[name], "csv": made[f"{name}_csv"]}
        for name in snakemake.params.tables
    }
    state_laws(snakemake.input.shapes, output)
