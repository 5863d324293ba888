"""Which causal language models and encoders transformers has and the anatomy has not.

The lists are kept beside this file. A release of transformers with a new family fails here, until
its model_type is described or listed: so that it is known, and not met by a user first.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.models.auto import modeling_auto

from normgauge.anatomy import FAMILIES
from normgauge.checkpoints.inner import INNER

LISTED = Path(__file__).parent / "families_without_anatomy"
KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "encoder": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}


def undescribed(kind: str) -> set[str]:
    return set(KINDS[kind]) - set(FAMILIES) - set(INNER)


@pytest.mark.parametrize("kind", KINDS)
def test_families_without_an_anatomy_are_those_that_are_listed(kind):
    listed = (LISTED / f"{kind}.txt").read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed))
    assert undescribed(kind) - set(listed) == set(), "new in transformers: describe or list them"
    assert set(listed) - undescribed(kind) == set(), "described now, or gone: take them out"


def test_a_family_that_is_described_would_be_missed_if_its_anatomy_were_gone(monkeypatch):
    monkeypatch.delitem(FAMILIES, "llama")
    assert "llama" in undescribed("causal")
