"""The library: live models measured by the functions of the workflow, and left as they are."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import normgauge
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.capture import CaptureSettings, capture_checkpoint
from normgauge.capture.checkpoint import describe_checkpoint
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.fingerprint.files import fingerprint_checkpoint
from normgauge.fingerprint.memory import Plan
from normgauge.fingerprint.protocol import KERNEL_COSINE
from normgauge.live.kernel import kernel_check
from normgauge.live.measuring import inputs_of, measured
from normgauge.live.models import checkpoint_of

PUBLIC = [name for name in normgauge.__all__ if name not in ("__version__", "InputError")]
DTYPES = {"float32": ["residual", "terminal", "taps"], "float64": ["terminal"]}


def gpt2(**changes):
    config = {
        "n_layer": 2,
        "n_embd": 16,
        "n_head": 2,
        "vocab_size": 50,
        "n_positions": 32,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config | changes))
        for name, parameter in model.named_parameters():
            if "ln_" in name:
                parameter.data += 0.3 * torch.randn(parameter.shape)
    return model


@pytest.mark.parametrize("name", ["__init__", *PUBLIC])
def test_the_example_in_each_docstring_is_true(name):
    module = (
        normgauge
        if name == "__init__"
        else importlib.import_module(f"normgauge.{normgauge._HOME[name]}")
    )
    subject = normgauge if name == "__init__" else getattr(normgauge, name)
    tests = [
        each
        for each in doctest.DocTestFinder(recurse=False).find(subject, name, module=module)
        if each.examples
    ]
    assert len(tests) == 1
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(tests[0]).failed == 0


def test_the_frame_of_a_live_model_is_the_workflows(tmp_path):
    model, settings = gpt2(), Settings(8, 32, 3)
    folder, paths = (
        tmp_path / "checkpoint",
        {
            name: tmp_path / f"{name}.parquet"
            for name in ("fingerprint", "schur", "stacks", "summary")
        },
    )
    model.save_pretrained(folder)
    entry = {"source": {"path": str(folder)}, "modality": "tokens", "calibration": "random-tokens"}
    calibration, manifest = tmp_path / "calibration.parquet", tmp_path / "checkpoint.json"
    describe_checkpoint("tiny", "local", entry, folder, manifest)
    prepare(
        entry, folder, None, calibration, config=open_checkpoint(folder).config, settings=settings
    )
    capture_checkpoint(
        folder,
        json.loads(manifest.read_text()),
        calibration,
        tmp_path / "moments",
        CaptureSettings(DTYPES, "cov64", 8, jackknife_groups=4),
        named=("tiny", "local"),
    )
    fingerprint_checkpoint([tmp_path / "moments"], list(DTYPES), manifest, paths)
    rows = pd.read_parquet(calibration)["ids"]
    frame = normgauge.fingerprint(
        model, [torch.tensor(row) for row in rows], forward_dtypes=DTYPES, jackknife_groups=4
    )
    stored = pd.read_parquet(paths["fingerprint"])
    assert list(frame.columns) == list(stored.columns)
    assert len(frame) == 7
    for name in frame:
        assert repr(frame[name].tolist()) == repr(stored[name].tolist()), name
    assert frame.sigma_active_min_se.notna().any()


def test_a_model_is_left_as_it_was():
    model = gpt2().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    normgauge.fingerprint(model, [torch.arange(32).repeat(2, 1)] * 4)
    other = normgauge.transform(model, normgauge.random_gauge(model, 3))
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert other is not model
    assert normgauge.transform(model, normgauge.random_gauge(model, 3), in_place=True) is model
    assert torch.equal(model.transformer.wte.weight, other.transformer.wte.weight)
    assert model.lm_head.weight is model.transformer.wte.weight
    normgauge.transform(model, normgauge.random_gauge(model, 3).inverse(), in_place=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def found_in(model, dtype="float32"):
    checkpoint = checkpoint_of(model)
    plan = Plan({dtype: ("residual", "terminal", "taps", "schur")})
    return measured(checkpoint, inputs_of(checkpoint.config, None), plan, "tiny")


def test_the_kernel_holds_at_layer_norms_and_is_not_claimed_elsewhere(monkeypatch):
    found = found_in(gpt2())
    check = kernel_check(found.anatomy, found.fingerprint, found.schur)
    assert check.verdicts == dict.fromkeys([norm.name for norm in found.anatomy.norms], "holds")
    assert check.largest < 1e-5

    def without_mean(self, states):
        return (
            states / states.square().mean(-1, keepdim=True).add(self.eps).sqrt() * self.weight
            + self.bias
        )

    monkeypatch.setattr(torch.nn.LayerNorm, "forward", without_mean)
    planted = found_in(gpt2())
    verdicts = kernel_check(planted.anatomy, planted.fingerprint, planted.schur).verdicts
    assert verdicts == dict.fromkeys(verdicts, "fails")


def test_half_precision_is_not_called_a_kernel_that_holds():
    found = found_in(gpt2(), "bfloat16")
    check = kernel_check(found.anatomy, found.fingerprint, found.schur)
    assert check.verdicts["transformer.ln_f"] != "fails"
    assert check.count("fails") == 0
    assert check.count("undecided") > 0


def test_dead_directions_are_those_that_activations_show():
    model = gpt2()
    direction = normgauge.dead_directions(model)["transformer.ln_f"]
    assert direction.shape == (1, 16)
    assert direction.dtype == np.float64
    states = (
        model.eval()
        .transformer(torch.randint(0, 50, (8, 32)))
        .last_hidden_state.detach()
        .double()
        .reshape(-1, 16)
    )
    lengths = (states - states.mean(0)).numpy() @ direction[0]
    assert np.abs(lengths).max() < 1e-5
    assert np.linalg.norm(direction) == pytest.approx(1)
    assert KERNEL_COSINE < 1
    llama = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "vocab_size": 50,
    }
    small = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama))
    assert normgauge.dead_directions(small) == {}
    small.model.norm.weight.data[3] = 0
    assert normgauge.dead_directions(small)["model.norm"].tolist() == [
        [float(place == 3) for place in range(16)]
    ]


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([], "none given"),
        ([torch.tensor([1, 99])], "the model has 50 tokens"),
        ([torch.zeros(1, 40, dtype=torch.int64)], "the model takes 32"),
        ([torch.zeros(2, 3)], "expected token ids"),
        (["text"], "is no batch"),
        ([{"input_ids": [1, 2]}], "return_tensors='pt'"),
        ([torch.arange(10)], "rank deficient"),
    ],
)
def test_batches_that_do_not_fit_are_refused_in_one_line(batches, said):
    with pytest.raises(normgauge.InputError, match=said) as raised:
        normgauge.fingerprint(gpt2(), batches)
    assert "\n" not in str(raised.value)


def test_what_is_no_transformers_model_is_refused():
    for wrong in (torch.nn.Linear(2, 2), "gpt2", None):
        with pytest.raises(normgauge.InputError, match="expected a transformers model"):
            normgauge.fingerprint(wrong)
    quantised = gpt2()
    quantised.transformer.h[0].register_buffer("codes", torch.zeros(3, dtype=torch.int8))
    with pytest.raises(normgauge.InputError, match="unquantised"):
        normgauge.fingerprint(quantised)
    with pytest.raises(normgauge.InputError, match="mpt"):
        normgauge.describe(transformers.MptConfig())


def test_what_is_no_gauge_and_no_seed_is_refused():
    with pytest.raises(normgauge.InputError, match="gauge: expected a Gauge"):
        normgauge.transform(gpt2(), 3)
    with pytest.raises(normgauge.InputError, match="seed: expected a whole number"):
        normgauge.random_gauge(gpt2(), seed=-1)


def test_padding_does_not_count():
    model, ids = gpt2(), torch.randint(1, 50, (6, 32))
    mask = torch.ones_like(ids)
    mask[:, 20:] = 0
    frame = normgauge.fingerprint(
        model, [{"input_ids": ids, "attention_mask": mask, "labels": ids}]
    )
    assert set(frame.n) == {6 * 20}


def test_compare_finds_what_changed_and_refuses_equal_models():
    model = gpt2()
    with pytest.raises(normgauge.InputError, match="the same weights"):
        normgauge.compare(model, gpt2())
    with pytest.raises(normgauge.InputError, match="one class"):
        normgauge.compare(model, model.transformer)
    with pytest.raises(normgauge.InputError, match="n_layer"):
        normgauge.compare(model, gpt2(n_layer=1))


def test_importing_is_quick_public_names_do_not_become_rooms_and_help_is_worth_reading():
    script = """if True:
        import inspect, sys, normgauge
        assert not {"torch", "transformers", "numpy"} & set(sys.modules)
        import normgauge.fingerprint.study
        assert inspect.isfunction(normgauge.fingerprint), normgauge.fingerprint
        help(normgauge)"""
    folder = Path(inspect.getfile(normgauge)).parents[1]
    text = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    assert all(f"{name}(" in text for name in PUBLIC)
    assert ">>> frame = normgauge.fingerprint(model)" in text
    assert set(dir(normgauge)) >= set(normgauge.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        normgauge.nothing  # noqa: B018
