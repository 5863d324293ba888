"""What goes in: corpora, calibration inputs, batches.

Import from the modules: Snakemake reads `corpora` at every start, which must not load torch.
"""
