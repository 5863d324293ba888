"""One block in memory: the moments have the bytes of the whole-model pass, whatever the family."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from normgauge.calibration.batches import Batch
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.capture import by_block as by_block_module
from normgauge.capture import norm_rows
from normgauge.capture.by_block import Run, capture_by_block
from normgauge.capture.hooks import capture
from normgauge.capture.outputs import FiledOutputs, HeldOutputs
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import capture_checkpoint, capture_model
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.skeleton import Skeleton, held_skeleton, skeleton
from normgauge.errors import InputError
from normgauge.gauge.equivalence import outputs, outputs_of
from normgauge.provenance import resumable_path
from unit.gauge_models import config_of, inputs_of, random_checkpoint
from unit.test_anatomy import FORWARD, SCEPTR

EVERY = os.environ.get("NORMGAUGE_EVERY_ORDER") == "1"
CPU = torch.device("cpu")
DTYPES = ("float32", "float64", "bfloat16")
CLASSES = [(case, name) for case, name in FORWARD if case not in SCEPTR] + [("sceptr", "Sceptr")]
# one class of each case, its arithmetic in turn
SAMPLE = [(*pair, DTYPES[number % 3]) for number, pair in enumerate(dict(CLASSES).items())]
CASES = [(*pair, dtype) for pair in CLASSES for dtype in DTYPES] if EVERY else SAMPLE

# tied and biased readouts, pooled and pictures' heads, decoders beside encoders, our own class
HEADS = [
    ("gpt2", "GPT2LMHeadModel"),
    ("gemma2", "Gemma2ForCausalLM"),
    ("bert", "BertForMaskedLM"),
    ("albert", "AlbertForMaskedLM"),
    ("vit_mae", "ViTMAEModel"),
    ("dinov2", "Dinov2ForImageClassification"),
    ("t5", "T5ForConditionalGeneration"),
    ("whisper", "WhisperForConditionalGeneration"),
    ("sceptr", "Sceptr"),
]


def batches_of(case, architecture, anatomy):
    inputs = inputs_of(case, architecture)
    masks = dict.fromkeys((stack.name for stack in anatomy.stacks), None)
    first = {
        key: value.float() if value.is_floating_point() else value for key, value in inputs.items()
    }
    turned = {
        key: value.roll(1, -1) if key == "pixel_values" else value.flip(0)
        for key, value in first.items()
    }
    return [Batch(first, masks, (0, 0, 1)), Batch(turned, masks, (1, 1, 2))]


def assert_same_bytes(found, expected):
    assert found.keys() == expected.keys()
    for name, moments in expected.items():
        assert found[name].mean.tobytes() == moments.mean.tobytes(), name
        assert found[name].scatter().tobytes() == moments.scatter().tobytes(), name
        assert found[name].groups.keys() == moments.groups.keys()


def by_block(
    checkpoint, anatomy, sites, source, dtype, outputs=None, accumulation="cov64", norms=()
):
    run = Run(source, 2, accumulation, float("inf"), "test")
    model = skeleton(checkpoint, dtype, CPU)
    parts = capture_by_block(model, anatomy, sites, run, norms, outputs or HeldOutputs())
    return {name: moments for part in parts for name, moments in part.items()}


@pytest.mark.parametrize(("case", "architecture", "dtype"), CASES)
def test_the_order_of_blocks_changes_no_bit(tmp_path, case, architecture, dtype):
    """One class of each case; with NORMGAUGE_EVERY_ORDER=1 all classes in all arithmetics."""
    checkpoint, anatomy = random_checkpoint(config_of(case, architecture))
    batches = batches_of(case, architecture, anatomy)
    whole = capture(build_model(checkpoint, dtype), anatomy.sites, batches, "cov64")
    found = by_block(
        checkpoint, anatomy, anatomy.sites, lambda: batches, dtype, FiledOutputs(tmp_path)
    )
    assert_same_bytes(found, whole)


def forgetful(monkeypatch, change):
    """Plant a fault in the walk through a model's blocks."""
    honest = by_block_module._Walk.passed
    monkeypatch.setattr(
        by_block_module._Walk, "passed", lambda walk, *given: change(honest, walk, *given)
    )


def test_a_block_that_sees_another_input_is_seen(monkeypatch):
    """The fault: a block is given the embedding instead of what the block before it gave."""
    checkpoint, anatomy = random_checkpoint(config_of("gemma2", "Gemma2ForCausalLM"))
    batches = batches_of("gemma2", "Gemma2ForCausalLM", anatomy)
    whole = capture(build_model(checkpoint, "float32"), anatomy.sites, batches, "cov64")

    def stale(honest, walk, name, module, args, kwargs):
        if walk._call < walk.own.number:
            walk._call += 1
            return args[0] if args else kwargs["hidden_states"]
        return honest(walk, name, module, args, kwargs)

    forgetful(monkeypatch, stale)
    found = by_block(checkpoint, anatomy, anatomy.sites, lambda: batches, "float32")
    first = "decoder/block.1/output"
    assert found[first].mean.tobytes() == whole[first].mean.tobytes()
    second = "decoder/block.2/output"
    assert found[second].mean.tobytes() != whole[second].mean.tobytes()


def test_one_block_is_in_memory_and_never_the_readout(monkeypatch):
    checkpoint, anatomy = random_checkpoint(config_of("llama", "LlamaForCausalLM"))
    batches = batches_of("llama", "LlamaForCausalLM", anatomy)
    model = skeleton(checkpoint, "float32", CPU)
    parts = {
        name: model.model.get_submodule(name) for name in (*anatomy.stacks[0].blocks, "lm_head")
    }
    seen = []
    honest = by_block_module._Walk._forward

    def forward(walk, number, batch):
        seen.append(
            [
                name
                for name, module in parts.items()
                if not all(parameter.is_meta for parameter in module.parameters())
            ]
        )
        honest(walk, number, batch)

    monkeypatch.setattr(by_block_module._Walk, "_forward", forward)
    run = Run(lambda: batches, 2, "cov64", float("inf"), "test")
    for _ in capture_by_block(model, anatomy, anatomy.sites, run, [], HeldOutputs()):
        pass
    assert seen == [[name] for name in anatomy.stacks[0].blocks for _ in range(2)]
    assert model.model.model.embed_tokens.weight.is_meta


def test_blocks_in_another_order_than_the_anatomys_are_refused():
    checkpoint, anatomy = random_checkpoint(config_of("llama", "LlamaModel"))
    batches = batches_of("llama", "LlamaModel", anatomy)
    stack = anatomy.stacks[0]
    turned = replace(anatomy, stacks=(replace(stack, blocks=stack.blocks[::-1]),))
    with pytest.raises(InputError, match=r"layers\.0: called as block 1 of a forward pass"):
        by_block(checkpoint, turned, anatomy.sites, lambda: batches, "float32")


def test_sites_that_need_a_second_pass_get_it_block_by_block():
    """A tiny gain makes a spectrum wide, so `auto` takes the orthogonal factor there."""
    checkpoint, anatomy = random_checkpoint(config_of("llama", "LlamaModel"))
    checkpoint.tensors["layers.1.input_layernorm.weight"][:3] = 1e-9
    batches = batches_of("llama", "LlamaModel", anatomy)
    norms = norm_rows(anatomy, checkpoint.tensors)
    whole = capture_model(
        build_model(checkpoint, "float64"),
        anatomy.sites,
        lambda: batches,
        2,
        "auto",
        "test",
        float("inf"),
        norms,
    )
    found = by_block(
        checkpoint, anatomy, anatomy.sites, lambda: batches, "float64", None, "auto", norms
    )
    methods = {name: moments.method for name, moments in found.items()}
    assert methods == {name: moments.method for name, moments in whole.items()}
    assert methods["decoder/block.2/query_key_value_input"] == "tsqr64"
    assert_same_bytes(found, whole)


@pytest.mark.parametrize("kind", ["held", "filed"])
def test_outputs_come_back_bit_by_bit(tmp_path, kind):
    outputs = HeldOutputs() if kind == "held" else FiledOutputs(tmp_path)
    rows = torch.randn(3, 5).bfloat16()
    values = [(rows, None, [torch.arange(4), torch.zeros(0, 2)]), rows.T]
    for number, value in enumerate(values):
        outputs.put("decoder", number, value)
    outputs.finish("decoder")
    outputs.put("decoder", 0, values[1])  # the next block at work
    if kind == "filed":
        outputs = FiledOutputs(tmp_path)  # as another process finds them
        found = outputs.get("decoder", 0)
        assert [type(part) for part in (found, *found[1:])] == [tuple, type(None), list]
        assert torch.equal(found[0], rows)
        assert torch.equal(found[2][0], values[0][2][0])
        assert found[2][1].shape == (0, 2)
    assert torch.equal(outputs.get("decoder", 1), rows.T)
    assert outputs.finished == 1


def test_what_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(InputError, match="a block gives out a dict"):
        FiledOutputs(tmp_path).put("decoder", 0, ({},))


@pytest.fixture
def folder(tmp_path):
    """A llama of three blocks on disk, and a calibration of 24 sequences."""
    checkpoint, _ = random_checkpoint(config_of("llama", "LlamaForCausalLM", num_hidden_layers=3))
    (tmp_path / "checkpoint").mkdir()
    save_file(dict(checkpoint.tensors), tmp_path / "checkpoint" / "model.safetensors")
    checkpoint.config.save_pretrained(tmp_path / "checkpoint")
    prepare(
        {"modality": "text", "calibration": "random-tokens"},
        tmp_path / "checkpoint",
        None,
        tmp_path / "calibration.parquet",
        config=checkpoint.config,
        settings=Settings(24, 8),
    )
    return tmp_path


def capture_folder(folder, destination):
    capture_checkpoint(
        folder / "checkpoint",
        {"weights_sha256": "0", "precision": "full"},
        folder / "calibration.parquet",
        destination,
        CaptureSettings({"float64": ["residual", "schur"], "float32": ["residual"]}, "cov64", 8),
        named=("m", "r"),
    )


def written(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def watch_blocks(monkeypatch, deadly=None):
    """The blocks that are loaded, in order; at the `deadly`-th the process is killed."""
    loaded: list[int] = []
    honest = Skeleton.load

    def load(model, names):
        names = list(names)
        loaded.extend(int(name.split(".")[2]) for name in names if name.endswith("q_proj.weight"))
        if len(loaded) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        honest(model, names)

    monkeypatch.setattr(Skeleton, "load", load)
    return loaded


def die(folder, deadly):
    """In a process of its own: a capture that does not come to its end."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watch_blocks(monkeypatch, deadly)
        capture_folder(Path(folder), Path(folder) / "moments")


def test_a_capture_that_was_killed_goes_on_at_its_block(folder, monkeypatch):
    """The process dies in the second block of the second arithmetic; what it had done is not done
    again.
    """
    command = f"from unit.test_capture_by_block import die; die({str(folder)!r}, 5)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    died = subprocess.run([sys.executable, "-c", command], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    assert not (folder / "moments").exists()
    loaded = watch_blocks(monkeypatch)
    capture_folder(folder, folder / "moments")
    assert loaded == [1, 2]
    capture_folder(folder, folder / "whole")
    assert loaded == [1, 2, 0, 1, 2, 0, 1, 2]
    assert written(folder / "moments") == written(folder / "whole")
    assert not list(folder.glob(".*"))


def test_what_was_left_of_other_settings_is_not_taken_up(tmp_path):
    path = tmp_path / "moments"
    for key, expected in (("a", []), ("a", ["kept"]), ("b", [])):
        with suppress(KeyboardInterrupt), resumable_path(path, key) as work:
            found = [file.name for file in (work / "result").iterdir()]
            assert found == expected
            (work / "result" / "kept").write_text("done")
            raise KeyboardInterrupt
    with pytest.raises(InputError, match="refused"), resumable_path(path, "b") as work:
        raise InputError("refused")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", ["t5", "gemma3", "whisper"])
def test_a_model_in_memory_passes_block_by_block_too(case):
    architecture = next(name for each, name in CLASSES if each == case and "For" in name)
    checkpoint, anatomy = random_checkpoint(config_of(case, architecture))
    batches = batches_of(case, architecture, anatomy)
    whole = capture(build_model(checkpoint, "float32"), anatomy.sites, batches, "cov64")
    model = held_skeleton(build_model(checkpoint, "float32"))
    run = Run(lambda: batches, 2, "cov64", float("inf"), "test")
    found = {}
    for part in capture_by_block(model, anatomy, anatomy.sites, run, [], HeldOutputs()):
        found |= part
    assert_same_bytes(found, whole)


@pytest.mark.parametrize(
    ("case", "architecture", "dtype"),
    CASES if EVERY else [(*pair, DTYPES[number % 3]) for number, pair in enumerate(HEADS)],
)
def test_the_model_s_outputs_have_the_bytes_of_the_whole_pass(case, architecture, dtype):
    """One class of each case whose head is unlike the others'; NORMGAUGE_EVERY_ORDER=1: all."""
    checkpoint, anatomy = random_checkpoint(config_of(case, architecture))
    batches = batches_of(case, architecture, anatomy)
    model = build_model(checkpoint, dtype)
    whole = [outputs(model, batch.inputs) for batch in batches]
    found = list(outputs_of(checkpoint, dtype, batches))
    assert len(found) == len(whole)
    for fields, expected in zip(found, whole, strict=True):
        assert fields.keys() == expected.keys()
        for name, value in expected.items():
            assert fields[name].numpy().tobytes() == value.numpy().tobytes(), name


def test_outputs_of_blocks_that_see_another_input_are_seen(monkeypatch):
    """The fault: the last block's output is that of a batch turned around."""
    checkpoint, anatomy = random_checkpoint(config_of("llama", "LlamaForCausalLM"))
    batches = batches_of("llama", "LlamaForCausalLM", anatomy)
    honest = list(outputs_of(checkpoint, "float64", batches))
    get = HeldOutputs.get
    monkeypatch.setattr(HeldOutputs, "get", lambda *given: get(*given).flip(0))
    for fields, expected in zip(outputs_of(checkpoint, "float64", batches), honest, strict=True):
        assert not torch.equal(fields["logits"], expected["logits"])
