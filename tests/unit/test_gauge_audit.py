"""The audit: names move, mapped names agree, behaviour stays; and it notices when one of these
fails.
"""

from __future__ import annotations

import pytest
import torch

from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.equivalence import Deviation
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.schemas.signed_permutation import tables
from normgauge.signed_permutation.name_audit import audit_rows, claims_of, compared, middle_site
from unit.gauge_models import tiny

CLAIMS = ["attribution", "active coordinates", "difference of means", "active feed-forward units"]
UNMOVED = Deviation(0.0, 0.0)


def probes(anatomy, count: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    stack = anatomy.primary_stack.name
    return [
        Batch({"input_ids": torch.randint(2, 17, (3, 9), generator=generator)}, {stack: None})
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
        ("gemma3", "Gemma3ForCausalLM"),
        ("bert", "BertModel"),
    ],
)
def test_raw_names_move_and_mapped_names_agree(case, architecture, tmp_path):
    checkpoint, anatomy = tiny(case, architecture)
    rows = audit_rows(checkpoint, anatomy, probes(anatomy), range(42, 52), top=3)
    tables.write(tmp_path / "audit.parquet", "gauge_audit", rows, {})
    assert [row["claim"] for row in rows] == CLAIMS * 10
    for claim in CLAIMS:
        of_claim = [row for row in rows if row["claim"] == claim]
        assert all(row["mapped_overlap"] == 1 for row in of_claim), claim
        assert sum(row["raw_overlap"] for row in of_claim) / 10 < 0.6  # chance is 1/4 in the stream
        assert all(row["relative_deviation"] < 1e-3 for row in of_claim)
        assert all(row["chance"] == row["top"] / row["width"] for row in of_claim)


def observed(case: str = "llama", architecture: str = "LlamaForCausalLM"):
    checkpoint, anatomy = tiny(case, architecture)
    model = build_model(checkpoint, "float32")
    return anatomy, claims_of(
        model, anatomy, middle_site(anatomy), [batch.inputs for batch in probes(anatomy)]
    )


def test_the_audit_sees_a_wrong_map():
    """The model is not moved at all, so every gauge but the identity maps its names to wrong
    ones.
    """
    anatomy, claims = observed()
    gauge = random_gauge(anatomy, 7)
    rows = compared(claims, claims, gauge, UNMOVED, 3, 7)
    assert min(row["mapped_overlap"] for row in rows) < 1
    assert {row["raw_overlap"] for row in rows} == {1.0}


def test_what_cannot_be_audited_is_refused():
    anatomy, claims = observed()
    model = build_model(tiny("llama", "LlamaForCausalLM")[0], "float32")
    inputs = [batch.inputs for batch in probes(anatomy)]
    norm_input = next(site for site in anatomy.sites if site.hook == "input")
    with pytest.raises(InputError, match="two at least"):
        claims_of(model, anatomy, middle_site(anatomy), inputs[:1])
    with pytest.raises(InputError, match="choose the output of a block"):
        claims_of(model, anatomy, norm_input, inputs)
    whole = random_gauge(anatomy, 42)
    for gauge, top, message in (
        (whole, 13, "top 13 of 12"),
        (Gauge({"residual": Orthogonal.random(12, 1)}), 3, "does not permute residual"),
        (Gauge({"residual": Monomial.random(12, 1)}), 3, "does not permute decoder/block.1/ffn"),
    ):
        with pytest.raises(InputError, match=message):
            compared(claims, claims, gauge, UNMOVED, top, 42)
