"""Look-ups in an anatomy agree with the tensors, maps and norms that it lists."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

from normgauge.anatomy import describe, lookup
from unit.gauge_models import CLASSES
from unit.test_anatomy import make_config

ANATOMIES = [describe(make_config(case, name)) for case, name in CLASSES if case != "sceptr"]
IDS = [anatomy.architecture for anatomy in ANATOMIES]


def test_the_example_is_true():
    assert doctest.testmod(lookup).failed == 0


@pytest.mark.parametrize("anatomy", ANATOMIES, ids=IDS)
def test_the_maps_of_a_weight_share_out_its_outputs(anatomy):
    for weight in {item.weight for item in anatomy.maps}:
        items = [item for item in anatomy.maps if item.weight == weight]
        shape = anatomy.tensor(weight).shape
        rows = np.concatenate([lookup.rows_of(anatomy, item) for item in items])
        assert sorted(rows) == list(range(shape[1 - items[0].input_axis]))
        numbers = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)
        parts = [lookup.matrix_of(anatomy, item, numbers) for item in items]
        sizes = [anatomy.space(item.writes).size for item in items]
        assert [len(part) for part in parts] == sizes
        assert sorted(torch.cat(parts).flatten().tolist()) == numbers.flatten().tolist()


@pytest.mark.parametrize("anatomy", ANATOMIES, ids=IDS)
def test_the_names_of_tied_values_are_the_same_from_each_of_them(anatomy):
    for tensor in anatomy.tensors:
        names = lookup.tied_names(anatomy, tensor.name)
        assert names[0] == tensor.name
        assert (len(names) > 1) == lookup.is_tied(anatomy, tensor.name)
        for other in names:
            assert set(lookup.tied_names(anatomy, other)) == set(names)
            assert lookup.holder(anatomy, other) == lookup.holder(anatomy, tensor.name)
            assert lookup.stored_name(anatomy, tensor.name, {other}) == other


@pytest.mark.parametrize("anatomy", ANATOMIES, ids=IDS)
def test_a_norm_feeds_the_maps_that_name_it(anatomy):
    for norm in anatomy.norms:
        assert tuple(item.name for item in lookup.fed_maps(anatomy, norm)) == norm.feeds
