"""Forward passes with hooks, streamed into moment accumulators."""

from normgauge.capture.hooks import capture
from normgauge.capture.norms import norm_rows
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import capture_checkpoint, capture_model

__all__ = ["CaptureSettings", "capture", "capture_checkpoint", "capture_model", "norm_rows"]
