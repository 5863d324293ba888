"""What `normgauge directions` writes keeps a LoRA of PEFT and the decoder of a dictionary off the
dead directions, and they lose nothing by it; kept off a random direction they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from normgauge.anatomy import describe
from normgauge.checkpoints.building import build_model
from normgauge.command import main
from normgauge.fingerprint.directions import (
    DeadDirections,
    absorbed,
    read_directions,
    without_kernel,
)
from unit.gauge_models import inputs_of
from unit.test_gauge_peft import GPT2, model_of, outputs, written

ADAPTER = "adapter_model.safetensors"
LAST = "transformer.ln_f"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A float64 checkpoint and its directions, as the command writes them."""
    checkpoint, _ = model_of(GPT2)
    base = tmp_path_factory.mktemp("exported")
    model, exported = base / "model", base / "dead.safetensors"
    checkpoint.config.save_pretrained(model)
    save_tensors(dict(checkpoint.tensors), model / "model.safetensors", {"format": "pt"})
    assert main(["directions", str(model), str(exported)]) == 0
    return checkpoint, read_directions(exported)


def constrained(source: Path, to: Path, norms: Mapping[str, DeadDirections]) -> Path:
    """A LoRA whose down projections read nothing along the kernels of the norms that feed them:
    what they read there is a constant, and becomes part of the bias. norms: by module.
    """
    arrays = load_file(source / ADAPTER)
    for name in [name for name in arrays if name.endswith("lora_A.weight")]:
        norm = norms[name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
        up, bias = (name.replace("lora_A.weight", f"lora_B.{part}") for part in ("weight", "bias"))
        arrays[bias] = arrays[bias] + arrays[up] @ absorbed(arrays[name], norm)
        arrays[name] = without_kernel(arrays[name], norm.kernel)
    to.mkdir()
    (to / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    save_file(arrays, to / ADAPTER, {"format": "pt"})
    return to


def random_direction(norm: DeadDirections, seed: int) -> DeadDirections:
    row = np.random.default_rng(seed).standard_normal((1, norm.v.size))
    return DeadDirections(norm.v, row / np.linalg.norm(row), norm.kind, np.zeros(1))


def test_a_lora_of_peft_loses_nothing(exported, tmp_path):
    checkpoint, directions = exported
    lora = LoraConfig(r=2, target_modules=["c_attn", "c_fc"], lora_bias=True, fan_in_fan_out=True)
    source = written(tmp_path / "adapter", build_model(checkpoint, "float64"), lora)
    fed = {item.module: item.norm for item in describe(checkpoint.config).maps if item.norm}
    own = {module: directions[norm] for module, norm in fed.items()}
    other = {module: random_direction(norm, 7) for module, norm in own.items()}
    before = outputs(checkpoint, source, GPT2)
    kept = outputs(checkpoint, constrained(source, tmp_path / "kept", own), GPT2)
    control = outputs(checkpoint, constrained(source, tmp_path / "control", other), GPT2)
    bare = build_model(checkpoint, "float64")(**inputs_of(*GPT2)).logits.detach()
    assert (before - bare).norm() > 1e-2 * before.norm()  # the adapter does something
    assert (kept - before).norm() <= 1e-12 * before.norm()
    assert (control - before).norm() > 1e-3 * before.norm()
    moved = load_file(tmp_path / "kept" / ADAPTER)
    for name, rows in load_file(source / ADAPTER).items():
        if name.endswith("lora_A.weight"):
            assert not np.allclose(moved[name], rows)  # something was taken out


def test_a_decoder_of_a_dictionary_loses_nothing(exported):
    checkpoint, directions = exported
    model, seen = build_model(checkpoint, "float64"), []
    model.get_submodule(LAST).register_forward_hook(lambda *at: seen.append(at[2].flatten(0, -2)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model(input_ids=torch.randint(0, 17, (20, 12), generator=generator))
    norm, y = directions[LAST], torch.cat(seen).numpy()
    codes = np.maximum(y @ np.random.default_rng(2).standard_normal((y.shape[1], 6)), 0)
    fitted = np.linalg.lstsq(np.column_stack([codes, np.ones(len(y))]), y, rcond=None)[0]
    decoder, bias = fitted[:-1], fitted[-1]
    planted = decoder + np.random.default_rng(3).standard_normal((6, 1)) @ norm.kernel

    def error(rows: np.ndarray) -> float:
        return float(((codes @ rows + bias - y) ** 2).mean())

    best = error(decoder)
    assert error(planted) > 1.01 * best
    assert error(without_kernel(planted, norm.kernel)) <= best * (1 + 1e-12)
    off = random_direction(norm, 7).kernel
    assert error(without_kernel(decoder, off)) > 1.001 * best
