"""Directions along which the outputs of a model's norms cannot vary."""

from __future__ import annotations

import numpy as np

from normgauge.anatomy import describe
from normgauge.anatomy.kernel import kernel_basis
from normgauge.anatomy.structure import NormKind
from normgauge.capture.norms import measurable_gain
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
    checkpoint = checkpoint_of(model)
    found = {}
    for norm in describe(checkpoint.config).norms:
        gain = measurable_gain(norm, checkpoint.tensors).numpy()
        if norm.kind == NormKind.LAYER_NORM or not gain.all():
            found[norm.name] = np.ascontiguousarray(kernel_basis(gain).T)
    return found
