"""Where weights come from, how they are read, and the models built from them.

Import from the modules: Snakemake reads `sources` at every start, which must not load torch.
"""
