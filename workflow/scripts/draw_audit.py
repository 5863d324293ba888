"""Draw the audit of one checkpoint on one page."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.signed_permutation.audit_page import draw_page

    given = snakemake.input
    draw_page(given.equivalence, given.recovery, given.audit, given.transport, snakemake.output)
