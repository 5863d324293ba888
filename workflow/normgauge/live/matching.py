"""The gauge that leads from one model in memory to another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from normgauge.anatomy import describe
from normgauge.calibration.direct import drawn_inputs, given_inputs, probe_settings
from normgauge.gauge.model_matching import ModelMatching, match_models
from normgauge.live.models import Model, checkpoint_of


def match(
    a: Model, b: Model, batches: Iterable[Any] | None = None, spaces: Iterable[str] | None = None
) -> ModelMatching:
    """Match the coordinates of B to those of A: streams, feed-forward units, heads and their maps.

    a, b: models of one class and shape. batches: as for `fingerprint`; both models see the same,
        and None draws eight
    sequences of random tokens. spaces: which to match, all when None. Of the result, `gauge` leads
    from A to B (`transform(b, gauge.inverse())` is B in A's coordinates), `certain` says whether
    all of it is certain, `spaces` how sure each part is, `change` how far the weights are apart
    before and after it. Raises InputError for models of unlike shapes, and batches that do not fit.

    >>> import torch, transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> with torch.random.fork_rng():
    ...     _ = torch.manual_seed(0)
    ...     model = transformers.GPT2LMHeadModel(config)
    >>> gauge = normgauge.random_gauge(model, seed=1)
    >>> found = normgauge.match(model, normgauge.transform(model, gauge))
    >>> found.gauge.elements["residual"] == gauge.elements["residual"]
    True
    """
    first, second = checkpoint_of(a), checkpoint_of(b)
    describe(second.config)
    if batches is None:
        inputs = drawn_inputs(first.config, probe_settings(first.config), batch_size=1)
    else:
        inputs = given_inputs(first.config, batches)
    return match_models(first, second, inputs.batches, spaces)
