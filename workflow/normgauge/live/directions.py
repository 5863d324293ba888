"""Directions along which the outputs of a model's norms cannot vary."""

from __future__ import annotations

import numpy as np

from normgauge.anatomy import describe
from normgauge.capture.norms import measurable_gain
from normgauge.fingerprint.directions import DeadDirections, directions_of
from normgauge.fingerprint.kernel import NormFacts
from normgauge.live.models import Model, checkpoint_of


def dead_directions(model: Model) -> dict[str, np.ndarray]:
    """By norm, the unit vectors along which its output is constant whatever the input: float64 (k,
    d), as rows.

    Behind a LayerNorm that is 1/gamma, one over its gains (arXiv 2606.19491, A.5), and k is 1.
    Where gains are zero, the axes of these coordinates take its place, behind an RMSNorm as well;
    an RMSNorm without zero gains has no such direction and is left out. Names are module paths.
    Nothing is run: the weights say it.

    >>> import transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> directions = normgauge.dead_directions(transformers.GPT2LMHeadModel(config))
    >>> sorted(directions)
    ['transformer.h.0.ln_1', 'transformer.h.0.ln_2', 'transformer.ln_f']
    >>> directions["transformer.ln_f"].round(2).tolist()
    [[0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25,
    0.25]]
    """
    found = directions_by_norm(model)
    return {name: each.kernel for name, each in found.items() if len(each.kernel)}


def directions_by_norm(model: Model) -> dict[str, DeadDirections]:
    """What the pipeline exports of each norm (`fingerprint.directions`), from the weights alone, so
    without measured floors.
    """
    checkpoint = checkpoint_of(model)
    norms = [
        NormFacts(
            norm.name,
            str(norm.kind),
            measurable_gain(norm, checkpoint.tensors).numpy(),
            checkpoint.tensors[norm.bias].double().numpy() if norm.bias else None,
        )
        for norm in describe(checkpoint.config).norms
    ]
    return directions_of(norms, [])
