"""Solve the observations of one part of a checkpoint: this process knows of no checkpoint."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.exact_recovery.solve import main

    set_arithmetic(snakemake.threads)
    main([snakemake.input.observations, snakemake.output[0]])
