"""Two models on the same inputs, for the verbs that match them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from normgauge.calibration.direct import PROBES, Inputs
from normgauge.calibration.interfaces import Interface, interface_of, vocabulary_size
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.probes import require_same_tokens
from normgauge.verbs.tokens import inputs_named


def probes(options: argparse.Namespace, folder: Path, *checkpoints: Checkpoint) -> Inputs:
    """Inputs that all of the checkpoints take, of the first one's tokenizer; PROBES sequences
    unless another number is given.

    Raises InputError as `inputs_named`.
    """
    options.sequences = options.sequences or PROBES
    configs = [each.config for each in checkpoints]
    if interface_of(configs[0]) not in (Interface.IMAGE, Interface.RECEPTOR):
        configs.sort(key=vocabulary_size)
    inputs = inputs_named(options, configs[0], folder, batch_size=1)
    print(f"comparing on {inputs.words}; minutes for a large model", file=sys.stderr)
    return inputs


def pair_probes(
    options: argparse.Namespace, folders: tuple[Path, Path], pair: tuple[Checkpoint, Checkpoint]
) -> Inputs:
    """The same for two folders, whose tokenizers must number tokens alike. Raises InputError where
    they do not.
    """
    require_same_tokens(*folders)
    return probes(options, folders[0], *pair)
