"""The canonical form of a model in memory, and whether two models are one."""

from __future__ import annotations

from normgauge.anatomy import describe
from normgauge.lineage import canonical as forms
from normgauge.lineage import same as sameness
from normgauge.lineage.rounding import Given
from normgauge.live.models import Model, checkpoint_of


def canonical(model: Model) -> forms.Canonical:
    """The form that all copies of a model under permutations, signs and quarter turns share.

    `sha256` of the result names it, `gauge` leads to it (`transform(model, gauge)`), `proven` says
    whether every tie was decided. Raises InputError for weights that are NaN.

    >>> import transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> copy = normgauge.transform(model, normgauge.random_gauge(model, seed=1))
    >>> normgauge.canonical(copy).sha256 == normgauge.canonical(model).sha256
    True
    """
    given = _given(model)
    return forms.canonical(given.anatomy, given.tensors)


def same(a: Model, b: Model) -> sameness.Sameness:
    """Whether some permutation, sign or quarter turn of coordinates turns A into B byte by byte.

    `verdict` of the result says so, `differences` where they first differ if not. "Not the same
    under the discrete groups" does not mean another function. Raises InputError as `canonical`.

    >>> import copy, transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> other = copy.deepcopy(model)
    >>> other.transformer.h[0].mlp.c_fc.weight.data[0, 0] += 1
    >>> found = normgauge.same(model, other)
    >>> str(found.verdict), found.differences[0].count
    ('not the same under the discrete groups', 1)
    """
    return sameness.same(_given(a), _given(b))


def _given(model: Model) -> Given:
    checkpoint = checkpoint_of(model)
    return Given(describe(checkpoint.config), checkpoint.tensors, checkpoint.config)
