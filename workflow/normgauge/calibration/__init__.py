"""What goes in: corpora, calibration inputs, batches."""

from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.calibration.corpora import CORPORA, build_corpus, fetch_needed
from normgauge.calibration.prepare import prepare

__all__ = ["CORPORA", "Batch", "batches", "build_corpus", "count_sequences", "fetch_needed", "prepare"]
