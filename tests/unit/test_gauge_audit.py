"""The audit: names move, mapped names agree, behaviour stays; and it notices when one of these fails."""

from __future__ import annotations

import pytest
import torch

from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.admissible import random_gauge
from normgauge.gauge.audit import audit_rows
from normgauge.gauge.groups import Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transformed
from normgauge.schemas.gauge import tables
from unit.gauge_models import tiny


def prepared(case: str, architecture: str, seed: int):
    checkpoint, anatomy = tiny(case, architecture)
    gauge = random_gauge(anatomy, seed, (anatomy.primary_stack.space,))
    models = [build_model(each, "float32") for each in (checkpoint, transformed(checkpoint, anatomy, gauge))]
    generator = torch.Generator().manual_seed(3)
    inputs = [{"input_ids": torch.randint(2, 17, (3, 9), generator=generator)} for _ in range(4)]
    site = next(site for site in anatomy.sites if site.block == 1 and site.tap == "output")
    return anatomy, models, gauge, site, inputs


@pytest.mark.parametrize(
    ("case", "architecture"), [("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("gemma3", "Gemma3ForCausalLM")]
)
def test_raw_names_move_and_mapped_names_agree(case, architecture, tmp_path):
    rows = []
    for seed in range(42, 52):
        anatomy, models, gauge, site, inputs = prepared(case, architecture, seed)
        rows += audit_rows(*models, anatomy, gauge, site, inputs, top=3, seed=seed)
    tables.write(tmp_path / "audit.parquet", "gauge_audit", rows, {})
    assert {row["claim"] for row in rows} == {"attribution", "active neurons", "difference of means"}
    for claim in {row["claim"] for row in rows}:
        of_claim = [row for row in rows if row["claim"] == claim]
        assert all(row["mapped_overlap"] == 1 for row in of_claim), claim
        assert sum(row["raw_overlap"] for row in of_claim) / 10 < 0.6  # chance is 1/4
        assert all(row["relative_deviation"] < 1e-3 and row["chance"] == 0.25 for row in of_claim)


def test_the_audit_sees_a_wrong_map():
    anatomy, models, gauge, site, inputs = prepared("llama", "LlamaForCausalLM", 42)
    rows = audit_rows(*models, anatomy, random_gauge(anatomy, 7, ("residual",)), site, inputs, top=3, seed=7)
    assert min(row["mapped_overlap"] for row in rows) < 1
    assert gauge != random_gauge(anatomy, 7, ("residual",))


def test_what_cannot_be_audited_is_refused():
    anatomy, models, gauge, site, inputs = prepared("llama", "LlamaForCausalLM", 42)
    norm_input = next(site for site in anatomy.sites if site.hook == "input")
    bad = [
        ((gauge, site, inputs[:1], 3), "two at least"),
        ((gauge, site, inputs, 13), "top 13 of 12"),
        ((gauge, norm_input, inputs, 3), "choose the output of a block"),
        ((Gauge({"residual": Orthogonal.random(12, 1)}), site, inputs, 3), "does not permute"),
    ]
    for (used, at, batches, top), message in bad:
        with pytest.raises(InputError, match=message):
            audit_rows(*models, anatomy, used, at, batches, top, 42)
