"""Where weights come from, how they are read, and the models built from them."""

from normgauge.checkpoints.building import build_model, reinitialise
from normgauge.checkpoints.manifest import Manifest
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint, open_config

__all__ = ["Checkpoint", "Manifest", "build_model", "open_checkpoint", "open_config", "reinitialise"]
