"""What `normgauge carry` writes acts in the moved model as the artifact did where it was made: by a
recorded and by a recovered gauge, and not by the gauge of another copy.
"""

from __future__ import annotations

import json
from contextlib import contextmanager

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from normgauge.anatomy import describe
from normgauge.checkpoints.configuration import open_config
from normgauge.command import main
from normgauge.gauge.model_gauge import Gauge, write_gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.transport.folders import transform_folder
from normgauge.transport.origin import Origin, identity_of
from unit.test_verbs import LLAMA, saved

IDS = torch.arange(48).reshape(3, 16) % 50
SAME, OTHER = 1e-4, 1e-2  # of the outputs' length: float32 through two blocks; what must show


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A Llama, its copies under a gauge of everything and of the stream alone, and the gauges."""
    torch.manual_seed(1)
    place = tmp_path_factory.mktemp("carry")
    config = transformers.LlamaConfig(**LLAMA, num_key_value_heads=2, bos_token_id=0)
    config.initializer_range = 0.3
    saved(place / "own", transformers.LlamaForCausalLM(config))
    anatomy = describe(open_config(place / "own"))
    origin = Origin(identity_of(place / "own")).metadata()
    for name, seed, spaces in (
        ("all", 5, None),
        ("other-all", 6, None),
        ("stream", 5, ("residual",)),
        ("other-stream", 6, ("residual",)),
    ):
        gauge: Gauge = random_gauge(anatomy, seed, *([spaces] if spaces else []))
        write_gauge(place / f"{name}.parquet", gauge, origin)
        if not name.startswith("other"):
            transform_folder(place / "own", place / name, gauge)
    return place


def opened(folder):
    return transformers.LlamaForCausalLM.from_pretrained(folder).eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


# ---------------------------------------------------------------- artifacts, and how each acts


@contextmanager
def first_block(model, change):
    """The model with the first block's output changed."""
    handle = model.model.layers[0].register_forward_hook(lambda _, __, output: change(output))
    try:
        yield model
    finally:
        handle.remove()


def make_adapter(place, own):
    torch.manual_seed(2)
    modules = ["q_proj", "o_proj", "gate_proj", "down_proj"]
    adapted = peft.get_peft_model(opened(own), peft.LoraConfig(r=2, target_modules=modules))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(place / "lora")
    return place / "lora"


def act_adapter(folder, artifact):
    return logits(peft.PeftModel.from_pretrained(opened(folder), artifact).eval())


def make_dictionary(place, _):
    generator = torch.Generator().manual_seed(3)
    shapes = {"W_enc": (16, 40), "b_enc": (40,), "W_dec": (40, 16), "b_dec": (16,)}
    arrays = {name: torch.randn(shape, generator=generator) / 4 for name, shape in shapes.items()}
    (place / "sae").mkdir()
    save_file(arrays, place / "sae/sae_weights.safetensors")
    config = {"architecture": "standard", "d_in": 16, "d_sae": 40, "dtype": "float32"}
    config |= {"hook_name": "blocks.0.hook_resid_post", "apply_b_dec_to_input": True}
    (place / "sae/cfg.json").write_text(json.dumps(config))
    return place / "sae"


def act_dictionary(folder, artifact):
    arrays = load_file(artifact / "sae_weights.safetensors")

    def reconstructed(state):
        codes = torch.relu((state - arrays["b_dec"]) @ arrays["W_enc"] + arrays["b_enc"])
        return codes @ arrays["W_dec"] + arrays["b_dec"]

    with first_block(opened(folder), reconstructed) as model:
        return logits(model)


def make_vectors(place, _):
    generator = torch.Generator().manual_seed(4)
    save_file({"steer": torch.randn(16, generator=generator)}, place / "steer.safetensors")
    return place / "steer.safetensors"


def act_vectors(folder, artifact):
    direction = load_file(artifact)["steer"]
    with first_block(opened(folder), lambda state: state + direction) as model:
        return logits(model)


def stepped(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        ids = (IDS + 7 * step) % 50
        model(ids, labels=ids).loss.backward()
        optimizer.step()


def adamw(model):
    return torch.optim.AdamW(list(model.named_parameters()), lr=3e-3)


def make_state(place, own):
    model = opened(own)
    optimizer = adamw(model)
    stepped(model, optimizer, 4)
    torch.save(optimizer.state_dict(), place / "state.pt")
    return place / "state.pt"


def act_state(folder, artifact):
    """Outputs after three more steps from the folder's weights with this state."""
    model = opened(folder)
    optimizer = adamw(model)
    optimizer.load_state_dict(torch.load(artifact, weights_only=True))
    stepped(model, optimizer, 3)
    return logits(model)


KINDS = {
    "LoRA of peft": (make_adapter, act_adapter, "all"),
    "SAE in SAELens' layout": (make_dictionary, act_dictionary, "all"),
    "vectors": (make_vectors, act_vectors, "all"),
    "optimizer state": (make_state, act_state, "stream"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_carried_acts_as_before_and_by_the_wrong_gauge_it_does_not(
    kind, models, tmp_path, capsys
):
    make, act, group = KINDS[kind]
    own, moved = models / "own", models / group
    artifact = make(tmp_path, own)
    bare, reference = logits(opened(own)), act(own, artifact)
    size = reference.norm()
    assert (reference - bare).norm() > 10 * OTHER * size  # it does something
    assert (logits(opened(moved)) - bare).norm() < SAME * size
    ways = {
        "recorded": ["--gauge", models / f"{group}.parquet"],
        "recovered": ["--to", moved],
        "wrong": ["--gauge", models / f"other-{group}.parquet"],
    }
    apart = {"raw": act(moved, artifact)}
    for name, way in ways.items():
        out = artifact.with_name(f"{name}-{artifact.name}")
        said = main(["carry", *map(str, (artifact, out, "--from", own, *way))])
        assert said == 0, capsys.readouterr().out
        apart[name] = act(moved, out)
    errors = {name: float((found - reference).norm() / size) for name, found in apart.items()}
    assert max(errors["recorded"], errors["recovered"]) < SAME, errors
    assert min(errors["wrong"], errors["raw"]) > OTHER, errors
