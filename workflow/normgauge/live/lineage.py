"""Whether one model in memory was made from another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from normgauge.anatomy import describe
from normgauge.calibration.direct import drawn_inputs, given_inputs, probe_settings
from normgauge.lineage import decision
from normgauge.lineage.units import hidden_units, side_of
from normgauge.live.models import Model, checkpoint_of


def lineage(
    a: Model, b: Model, batches: Iterable[Any] | None = None, seed: int = 0, draws: int = 9999
) -> decision.Lineage:
    """Whether A and B share an initialisation: exact tests, and a count that survives changes of
    coordinates.

    a, b: models of one family and width, of any depths. batches: as for `fingerprint`; both models
    see the same, and None draws random tokens. Of the result, `units`, `stream` and `hidden` have
    exact p-values where units and coordinates were treated alike in initialisation and training,
    `match.agreements` is the count, `verdict` what follows. Raises InputError for models that
    cannot be compared.

    >>> import copy, torch, transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> with torch.random.fork_rng():
    ...     _ = torch.manual_seed(0)
    ...     first, second = (transformers.GPT2LMHeadModel(config) for _ in range(2))
    >>> moved = normgauge.transform(first, normgauge.random_gauge(first, seed=1))
    >>> str(normgauge.lineage(first, moved).verdict), str(normgauge.lineage(first, second).verdict)
    ('related', 'unrelated by this evidence')
    """
    first, second = checkpoint_of(a), checkpoint_of(b)
    inputs = (
        drawn_inputs(first.config, probe_settings(first.config), batch_size=1)
        if batches is None
        else given_inputs(first.config, batches)
    )
    hidden = tuple(
        hidden_units(each, describe(each.config), inputs.batches) for each in (first, second)
    )
    return decision.lineage(side_of(first), side_of(second), (hidden[0], hidden[1]), seed, draws)
