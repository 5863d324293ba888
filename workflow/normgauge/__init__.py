"""normgauge: what the normalisation layers of transformers make knowable."""

__version__ = "0.1.0"
