"""Shifts along the vector of ones: invisible behind LayerNorm, refused elsewhere."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.check import Verdict, check
from normgauge.gauge.equivalence import deviation
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.null_line import NullLine, centring, null_line_axes, random_null_line, shifted
from unit.gauge_models import inputs_of, tiny

SHIFTABLE = [
    ("gpt2", "GPT2LMHeadModel", "residual"),
    ("gpt2-untied", "GPT2LMHeadModel", "residual"),
    ("gpt_neox", "GPTNeoXForCausalLM", "residual"),
    ("vit", "ViTModel", "residual"),
    ("whisper", "WhisperForConditionalGeneration", "encoder/residual"),
    ("whisper", "WhisperForConditionalGeneration", "decoder/residual"),
    ("bert", "BertModel", "residual"),
    ("bert", "BertForMaskedLM", "residual"),
    ("albert", "AlbertModel", "residual"),
    ("sceptr", "Sceptr", "residual"),
]


@pytest.mark.parametrize(("case", "architecture", "space"), SHIFTABLE)
def test_layer_norm_does_not_see_the_null_line(case, architecture, space):
    checkpoint, anatomy = tiny(case, architecture)
    tensors = {name: value.double() for name, value in checkpoint.tensors.items()}
    line = random_null_line(anatomy, space, 3)
    for used in (
        line,
        line.compose(random_null_line(anatomy, space, 4)),
        centring(anatomy, tensors, space),
    ):
        models = [
            build_model(dataclasses.replace(checkpoint, tensors=each), "float64")
            for each in (tensors, shifted(anatomy, tensors, space, used))
        ]
        assert (
            deviation(*models, anatomy, Gauge({}), [inputs_of(case, architecture)]).relative
            <= 1e-10
        )
    back = shifted(anatomy, shifted(anatomy, tensors, space, line), space, line.inverse())
    assert all(torch.allclose(back[name], value, atol=1e-12) for name, value in tensors.items())
    nothing = line.compose(line.inverse())
    assert not any(shift.any() for shift in nothing.shifts.values())
    centred = shifted(anatomy, tensors, space, centring(anatomy, tensors, space))
    for name, axis in null_line_axes(anatomy, space).items():
        assert centred[name].mean(axis).abs().max() < 1e-12
        assert not torch.equal(centred[name], tensors[name])


def test_the_check_looks_past_the_null_line_for_the_block_that_differs():
    checkpoint, anatomy = tiny("gpt_neox", "GPTNeoXForCausalLM")
    tensors = {name: value.double() for name, value in checkpoint.tensors.items()}
    centred = shifted(anatomy, tensors, "residual", centring(anatomy, tensors, "residual"))
    spoilt = centred | {
        "gpt_neox.layers.1.mlp.dense_4h_to_h.weight": torch.zeros(12, 20, dtype=torch.float64)
    }
    source, same, other = (
        dataclasses.replace(checkpoint, tensors=each) for each in (tensors, centred, spoilt)
    )
    batch = Batch(inputs_of("gpt_neox", "GPTNeoXForCausalLM"), {"decoder": None})
    assert check(source, same, [batch], Gauge({})).first_difference() is None
    assert check(source, other, [batch], Gauge({})).first_difference() == "decoder/block.2/output"
    half = dataclasses.replace(
        checkpoint, tensors={name: value.bfloat16() for name, value in tensors.items()}
    )
    moved = shifted(anatomy, half.tensors, "residual", random_null_line(anatomy, "residual", 3))
    found = check(half, dataclasses.replace(half, tensors=moved), [batch], Gauge({}))
    assert found.verdict == Verdict.ROUNDED
    assert found.first_difference() is None


def test_what_is_tied_or_not_on_the_stream_may_not_be_shifted():
    checkpoint, anatomy = tiny("gpt2", "GPT2LMHeadModel")
    axes = null_line_axes(anatomy, "residual")
    assert "transformer.wpe.weight" in axes
    for name in ("transformer.wte.weight", "transformer.ln_f.bias", "lm_head.weight"):
        assert name not in axes
        with pytest.raises(InputError, match="may not be shifted"):
            shifted(anatomy, checkpoint.tensors, "residual", NullLine({name: torch.zeros(())}))
    shift = torch.ones(17, dtype=torch.float64)
    tensors = {**checkpoint.tensors}
    tensors["transformer.wte.weight"] = (
        tensors["transformer.wte.weight"] + shift[:, None].float() * torch.arange(17)[:, None]
    )
    models = [
        build_model(dataclasses.replace(checkpoint, tensors=each), "float64")
        for each in (checkpoint.tensors, tensors)
    ]
    assert (
        deviation(*models, anatomy, Gauge({}), [inputs_of("gpt2", "GPT2LMHeadModel")]).relative
        > 1e-3
    )


@pytest.mark.parametrize(
    ("case", "architecture", "reason"),
    [
        ("llama", "LlamaForCausalLM", "keeps the mean"),
        ("dinov2", "Dinov2ForImageClassification", "classifier reads residual"),
        ("dinov2-gated", "Dinov2Model", "layer_scale1"),
    ],
)
def test_streams_without_a_null_line_are_refused(case, architecture, reason):
    with pytest.raises(InputError, match=reason):
        null_line_axes(tiny(case, architecture)[1], "residual")
