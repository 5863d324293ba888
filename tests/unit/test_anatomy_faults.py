"""Every fault that is planted in the anatomy shows in the outputs, whatever the family."""

from __future__ import annotations

import os

import pytest

from normgauge.anatomy import describe
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.gauge.random_gauges import random_gauge
from unit.anatomy_faults import config_with_one_size, survey, without_partner
from unit.gauge_models import CLASSES

EVERY = os.environ.get("NORMGAUGE_EVERY_FAULT") == "1"


@pytest.mark.parametrize(("case", "architecture"), CLASSES)
def test_a_tensor_in_the_wrong_space_of_its_size_is_seen(case, architecture):
    """One fault for each space; with NORMGAUGE_EVERY_FAULT=1 (and -s to see the counts) all of
    them.
    """
    found = survey(case, architecture, per_space=None if EVERY else 1)
    print(
        f"\n{architecture} ({case}): {found.planted} planted, {found.refused} of them refused, "
        f"{len(found.equivalent)} equivalent, "
        f"{len(found.survivors)} survive, least deviation {found.least:.1g}"
    )
    assert found.survivors == []
    assert found.planted - found.refused - len(found.equivalent) > 0


@pytest.mark.parametrize(("case", "architecture"), CLASSES)
def test_every_space_that_moves_has_a_partner_of_its_size(case, architecture):
    assert without_partner(describe(config_with_one_size(case, architecture))) == set()


@pytest.mark.parametrize(("case", "architecture"), CLASSES)
def test_no_two_spaces_share_their_element(case, architecture):
    anatomy = describe(config_with_one_size(case, architecture))
    elements = list(random_gauge(anatomy, 42).elements.values())
    orders = [element.target.tobytes() for element in elements if isinstance(element, Monomial)]
    maps = [
        element.value_maps.tobytes() for element in elements if isinstance(element, AttentionGauge)
    ]
    assert len(set(orders)) == len(orders)
    assert len(set(maps)) == len(maps)


def test_the_primary_stream_keeps_the_recorded_gauge_of_its_seed():
    anatomy = describe(config_with_one_size("llama", "LlamaForCausalLM"))
    assert random_gauge(anatomy, 42).elements["residual"] == Monomial.random(24, 42)
    whisper = random_gauge(describe(config_with_one_size("whisper", "WhisperModel")), 42).elements
    streams = whisper["decoder/residual"], whisper["encoder/residual"]
    assert [(element.target == Monomial.random(12, 42).target).all() for element in streams] == [
        True,
        False,
    ]
