"""The tables of one checkpoint: everything admissible passes, every control fails as it must, recovery is complete."""

from __future__ import annotations

import pytest
import torch

from normgauge.calibration.batches import Batch
from normgauge.errors import InputError
from normgauge.gauge.study import equivalence_rows, recovery_rows
from normgauge.schemas.gauge import tables
from unit.gauge_models import tiny


def probes(anatomy, count: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(9)
    stack = anatomy.primary_stack.name
    return [Batch({"input_ids": torch.randint(2, 17, (3, 9), generator=generator)}, {stack: None}) for _ in range(count)]


@pytest.mark.parametrize(
    ("case", "architecture", "controls"),
    [("llama", "LlamaForCausalLM", 1), ("gpt2", "GPT2LMHeadModel", 3), ("bert", "BertModel", 3), ("gemma3", "Gemma3ForCausalLM", 1)],
)
def test_equivalence_rows(case, architecture, controls, tmp_path):
    checkpoint, anatomy = tiny(case, architecture)
    rows = equivalence_rows(checkpoint, anatomy, probes(anatomy, 1), (42, 43), ("float64",))
    tables.write(tmp_path / "equivalence.parquet", "equivalence", rows, {})
    assert all(row["passed"] for row in rows), rows
    assert [row["admissible"] for row in rows] == ([True] * 3 + [False] * controls) * 2
    assert max(row["relative_deviation"] for row in rows if row["admissible"]) <= 1e-10
    assert min(row["relative_deviation"] for row in rows if not row["admissible"]) >= 1e-7


def test_recovery_rows():
    checkpoint, anatomy = tiny("llama", "LlamaForCausalLM")
    rows = recovery_rows(checkpoint, anatomy, probes(anatomy), (42, 43), (22, 100))
    assert {row["tokens"] for row in rows} == {22, 100}
    marginal = [row for row in rows if row["method"].endswith("on |C|")]
    signed = [row for row in rows if row["method"].endswith("on C")]
    assert len(marginal) == len(signed) == 2 * 2 * 4
    assert all(row["permutation_accuracy"] == row["sign_accuracy"] == 1 for row in marginal if row["tokens"] == 100)
    assert sum(row["permutation_accuracy"] for row in signed) / len(signed) < 0.8
    with pytest.raises(InputError, match="108 samples in the probes, 500 asked for"):
        recovery_rows(checkpoint, anatomy, probes(anatomy), (42,), (500,))
