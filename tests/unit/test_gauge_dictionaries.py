"""Dictionaries as SAELens stores them: the hook that they state decides what moves them, and
spliced in there they act as before.
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.checkpoints.building import build_model
from normgauge.command import main
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge, read_gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.transport.dictionaries import transport_dictionary
from normgauge.transport.hooks import hook_of
from normgauge.transport.sidecar import Sidecar, read_sidecar
from normgauge.transport.vectors import transport_vectors
from unit.gauge_models import inputs_of, tiny
from unit.test_gauge_command import stored as written

LLAMA, GPT2, NEOX = (
    ("llama", "LlamaForCausalLM"),
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt_neox", "GPTNeoXForCausalLM"),
)
BASE, ORIGIN = "b" * 64, "a" * 64
FEATURES = 25


def record(gauge: Gauge) -> Sidecar:
    return Sidecar.of(gauge, BASE, ORIGIN)


def wide(case):
    checkpoint, anatomy = tiny(*case)
    return dataclasses.replace(
        checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()}
    ), anatomy


def arrays_of(width: int, out: int | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(width)
    out = out or width
    shapes = {
        "W_enc": (width, FEATURES),
        "b_enc": (FEATURES,),
        "W_dec": (FEATURES, out),
        "b_dec": (out,),
        "threshold": (FEATURES,),
    }
    return {
        name: 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def stored(folder, arrays, config):
    """A dictionary's folder as SAELens writes it."""
    folder.mkdir()
    save_file(arrays, folder / "sae_weights.safetensors")
    save_file({"sparsity": torch.zeros(FEATURES)}, folder / "sparsity.safetensors")
    (folder / "cfg.json").write_text(json.dumps(config))
    return folder


def jump(arrays, state):
    before = (state - arrays["b_dec"]) @ arrays["W_enc"] + arrays["b_enc"]
    return torch.relu(before) * (before > arrays["threshold"])


@contextmanager
def spliced(model, module, on_input, arrays):
    """The model while what enters or leaves a module is replaced by the dictionary's reconstruction
    of it.
    """

    def rebuilt(state):
        return jump(arrays, state) @ arrays["W_dec"] + arrays["b_dec"]

    def changed(value):
        return (rebuilt(value[0]), *value[1:]) if isinstance(value, tuple) else rebuilt(value)

    place = model.get_submodule(module)
    handle = (
        place.register_forward_pre_hook(lambda _, given: changed(given))
        if on_input
        else place.register_forward_hook(lambda _, given, output: changed(output))
    )
    try:
        yield
    finally:
        handle.remove()


def flat(name, width):
    return {
        "hook_name": name,
        "hook_layer": 0,
        "hook_head_index": None,
        "d_in": width,
        "architecture": "jumprelu",
    }


def oldest(name, width):
    return {"hook_point": name, "d_in": width}


def current(name, width):
    metadata = {
        "sae_lens_version": "6.36.2",
        "hook_name": name,
        "hook_head_index": None,
        "model_class_name": "HookedTransformer",
    }
    return {
        "d_in": width,
        "d_sae": FEATURES,
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "reshape_activations": "hook_z" if name.endswith("_z") else "none",
        "metadata": metadata,
        "architecture": "jumprelu",
    }


# hook, how its configuration states it, model, the module that it is at, and whether at its input
HOOKS = [
    ("blocks.0.hook_resid_post", current, LLAMA, "model.layers.0", False),
    ("blocks.1.hook_resid_pre", oldest, LLAMA, "model.layers.0", False),
    ("model.layers.0", flat, LLAMA, "model.layers.0", False),
    ("layers.0", oldest, LLAMA, "model.layers.0", False),
    ("blocks.1.hook_mlp_out", flat, LLAMA, "model.layers.1.mlp", False),
    ("hook_embed", flat, LLAMA, "model.embed_tokens", False),
    ("ln_final.hook_normalized", current, LLAMA, "model.norm", False),
    ("blocks.0.mlp.hook_in", current, LLAMA, "model.layers.0.post_attention_layernorm", False),
    ("blocks.1.ln2.hook_normalized", flat, GPT2, "transformer.h.1.ln_2", False),
    ("hook_pos_embed", flat, GPT2, "transformer.wpe", False),
    ("blocks.1.mlp.hook_post", current, LLAMA, "model.layers.1.mlp.down_proj", True),
    ("blocks.0.mlp.hook_pre_linear", current, LLAMA, "model.layers.0.mlp.up_proj", False),
    ("blocks.0.mlp.hook_pre", current, LLAMA, "model.layers.0.mlp.gate_proj", False),
    ("blocks.0.attn.hook_z", current, LLAMA, "model.layers.0.self_attn.o_proj", True),
    ("blocks.1.attn.hook_v", flat, LLAMA, "model.layers.1.self_attn.v_proj", False),
    ("blocks.1.attn.hook_q", flat, LLAMA, "model.layers.1.self_attn.q_proj", False),
    ("blocks.1.attn.hook_k", flat, LLAMA, "model.layers.1.self_attn.k_proj", False),
    ("blocks.1.attn.hook_z", oldest, GPT2, "transformer.h.1.attn.c_proj", True),
    ("blocks.0.mlp.hook_pre", current, GPT2, "transformer.h.0.mlp.c_fc", False),
    ("blocks.0.hook_attn_out", flat, GPT2, "transformer.h.0.attn.c_proj", False),
    ("blocks.1.mlp.hook_post", flat, NEOX, "gpt_neox.layers.1.mlp.dense_4h_to_h", True),
]


@pytest.mark.parametrize(("name", "config", "case", "module", "on_input"), HOOKS)
def test_a_dictionary_acts_at_its_hook_of_the_moved_model_as_before(
    name, config, case, module, on_input, tmp_path
):
    checkpoint, anatomy = wide(case)
    gauge = random_gauge(anatomy, 42)
    width = hook_of(anatomy, name).width
    own = arrays_of(width)
    folder = stored(tmp_path / "sae", own, config(name, width))
    transport_dictionary(folder, tmp_path / "moved", anatomy, gauge, None, record(gauge))
    moved = load_file(tmp_path / "moved/sae_weights.safetensors")
    assert read_sidecar(tmp_path / "moved").base_sha256 == BASE
    for same in ("cfg.json", "sparsity.safetensors"):
        assert (tmp_path / "moved" / same).read_bytes() == (folder / same).read_bytes()
    models = [
        build_model(each, "float64")
        for each in (checkpoint, transformed(checkpoint, anatomy, gauge))
    ]
    found = {}
    with torch.no_grad():
        for key, model, arrays in (
            ("own", models[0], own),
            ("moved", models[1], moved),
            ("left", models[1], own),
        ):
            with spliced(model, module, on_input, arrays):
                found[key] = model(**inputs_of(*case)).logits
        without = models[0](**inputs_of(*case)).logits
    assert (found["moved"] - found["own"]).norm() <= 1e-10 * found["own"].norm()
    for other in (found["left"], without):
        assert (other - found["own"]).norm() > 1e-3 * found["own"].norm()


def test_a_transcoder_reads_one_space_and_writes_another(tmp_path):
    _, anatomy = wide(LLAMA)
    gauge = random_gauge(anatomy, 42)
    arrays = arrays_of(20, 12) | {"W_skip": torch.randn(12, 20, dtype=torch.float64)}
    config = current("blocks.0.mlp.hook_post", 20) | {
        "architecture": "skip_transcoder",
        "d_out": 12,
    }
    stored(tmp_path / "unstated", arrays, config)
    with pytest.raises(InputError, match="states no hook_name_out"):
        transport_dictionary(
            tmp_path / "unstated", tmp_path / "moved", anatomy, gauge, None, record(gauge)
        )
    config["metadata"]["hook_name_out"] = "blocks.0.hook_mlp_out"
    stored(tmp_path / "sae", arrays, config)
    transport_dictionary(tmp_path / "sae", tmp_path / "moved", anatomy, gauge, None, record(gauge))
    moved = load_file(tmp_path / "moved/sae_weights.safetensors")
    state = torch.randn(9, 20, dtype=torch.float64)

    def written(each, given):
        return (
            torch.relu(given @ each["W_enc"] + each["b_enc"]) @ each["W_dec"]
            + each["b_dec"]
            + given @ each["W_skip"].T
        )

    there = written(moved, gauge.elements["decoder/block.1/ffn"].apply(state))
    expected = gauge.elements["residual"].apply(written(arrays, state))
    torch.testing.assert_close(there, expected, rtol=1e-12, atol=1e-12)


def test_a_hook_that_does_not_fit_is_refused_by_its_name(tmp_path):
    _, anatomy = wide(LLAMA)
    gauge = random_gauge(anatomy, 42)
    stream = Gauge({"residual": gauge.elements["residual"]})
    bad = [
        (
            current("blocks.0.attn.hook_z", 24),
            stream,
            None,
            r"hook blocks\.0\.attn\.hook_z: the gauge does not move decoder/block\.1/value",
        ),
        (
            flat("blocks.0.mlp.hook_post", 20),
            stream,
            None,
            r"hook blocks\.0\.mlp\.hook_post: the gauge does not move decoder/block\.1/ffn",
        ),
        (
            current("blocks.0.attn.hook_z", 24),
            gauge,
            "residual",
            r"hook blocks\.0\.attn\.hook_z lies in decoder/block\.1/value, not in residual",
        ),
        (
            current("blocks.0.hook_resid_post", 20),
            gauge,
            None,
            r"d_in is 20, hook blocks\.0\.hook_resid_post has 12 coordinates",
        ),
        (
            oldest("blocks.0.mlp.hook_post", 12),
            gauge,
            None,
            r"d_in is 12, hook blocks\.0\.mlp\.hook_post has 20",
        ),
        (
            flat("blocks.7.hook_resid_post", 12),
            gauge,
            None,
            r"hook blocks\.7\.hook_resid_post: stands for no space of LlamaForCausalLM",
        ),
        (
            flat("blocks.0.attn.hook_pattern", 12),
            gauge,
            None,
            r"hook blocks\.0\.attn\.hook_pattern: stands for no space",
        ),
        (
            flat("blocks.0.attn.hook_z", 24) | {"hook_head_index": 1},
            gauge,
            None,
            r"hook blocks\.0\.attn\.hook_z of head 1 alone",
        ),
        ({"d_in": 12}, gauge, None, "states no hook"),
        (
            current("blocks.0.hook_resid_post", 12) | {"hook_point": "blocks.1.hook_mlp_out"},
            gauge,
            None,
            r"states the hooks blocks\.0.* and blocks\.1",
        ),
        (flat("hook_resid_post", 12), gauge, None, "hook hook_resid_post: stands for no space"),
        (flat("layers.2", 12), gauge, None, r"hook layers\.2: stands for no space"),
        ([], gauge, "residual", "not valid JSON"),
    ]
    for number, (config, used, space, message) in enumerate(bad):
        width = config["d_in"] if isinstance(config, dict) else 12
        folder = stored(tmp_path / f"sae{number}", arrays_of(width), config)
        with pytest.raises(InputError, match=message):
            transport_dictionary(folder, tmp_path / "moved", anatomy, used, space, record(used))
        # a file beside its configuration is refused in the same words
        (tmp_path / "beside").mkdir(exist_ok=True)
        save_file(arrays_of(width), tmp_path / "beside/sae_weights.safetensors")
        (tmp_path / "beside/cfg.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=message):
            transport_dictionary(
                tmp_path / "beside/sae_weights.safetensors",
                tmp_path / "moved.safetensors",
                anatomy,
                used,
                space,
                record(used),
            )
    assert not (tmp_path / "moved").exists()
    assert not (tmp_path / "moved.safetensors").exists()
    encoders = tiny("t5", "T5ForConditionalGeneration")[1]
    assert hook_of(encoders, "encoder.1.mlp.hook_post").space == "encoder/block.2/ffn"
    with pytest.raises(InputError, match=r"blocks\.0\.hook_resid_post: stands for no space"):
        hook_of(encoders, "blocks.0.hook_resid_post")


def test_carry_obeys_the_hook_and_takes_folders_of_either_layout(tmp_path, capsys):
    checkpoint, anatomy = tiny(*LLAMA)
    model = written(tmp_path / "model", checkpoint)
    spaces = [word for space in gauge_spaces(anatomy) for word in ("--space", space)]
    assert main(["gauge", "random", str(model), str(tmp_path / "g.parquet"), *spaces]) == 0
    carry = ["--from", str(model), "--gauge", str(tmp_path / "g.parquet")]
    gauge = read_gauge(tmp_path / "g.parquet")
    arrays = arrays_of(24)
    folder = stored(tmp_path / "sae", arrays, current("blocks.0.attn.hook_z", 24))
    assert main(["carry", str(folder), str(tmp_path / "moved"), *carry]) == 0
    mixed = gauge.elements["decoder/block.1/attention"].mixed
    assert torch.equal(
        load_file(tmp_path / "moved/sae_weights.safetensors")["b_dec"], mixed.apply(arrays["b_dec"])
    )
    plain = stored(tmp_path / "plain", {}, {"d_in": 12, "num_latents": FEATURES})
    (plain / "sae_weights.safetensors").unlink()
    # no hook: the last residual stream
    save_file({"b_dec": torch.ones(12)}, plain / "sae.safetensors")
    assert main(["carry", str(plain), str(tmp_path / "plain-moved"), *carry]) == 0
    assert torch.equal(
        load_file(tmp_path / "plain-moved/sae.safetensors")["b_dec"],
        gauge.elements["residual"].apply(torch.ones(12)),
    )
    (plain / "activations_store_state.safetensors").write_bytes(
        (plain / "sae.safetensors").read_bytes()
    )
    assert main(["carry", str(plain), str(tmp_path / "again"), *carry]) == 1
    (folder / "trainer_state.pt").write_bytes(b"\0")
    assert main(["carry", str(folder), str(tmp_path / "again"), *carry]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "holds 2 .safetensors files beside cfg.json" in errors[0]
    assert "old coordinates: trainer_state.pt; move them away first" in errors[1]
    assert not (tmp_path / "again").exists()


def test_dictionaries_that_take_lengths_follow_isometries_alone(tmp_path):
    """Decoder rows and activations keep their lengths under signed permutations, not under
    scales.
    """
    _, anatomy = wide(LLAMA)
    space, hook = "decoder/block.1/ffn", "blocks.0.mlp.hook_post"
    signed, scaled = Monomial.random(20, 3), Monomial(np.arange(20), np.exp2(np.arange(20) % 3))
    arrays = arrays_of(20)
    pursuit = {name: value for name, value in arrays.items() if name in ("W_dec", "b_dec")}
    kinds = {
        "norm": (arrays, {"normalize_activations": "constant_norm_rescale"}),
        "rows": (arrays, {"rescale_acts_by_decoder_norm": True, "architecture": "topk", "k": 4}),
        "pursuit": (pursuit, {"architecture": "matching_pursuit"}),
    }
    for kind, (content, change) in kinds.items():
        folder = stored(tmp_path / kind, content, current(hook, 20) | change)
        with pytest.raises(InputError, match="lengths, which the gauge of this space changes"):
            transport_dictionary(
                folder,
                tmp_path / f"{kind}-scaled",
                anatomy,
                Gauge({space: scaled}),
                None,
                record(Gauge({space: scaled})),
            )
        transport_dictionary(
            folder,
            tmp_path / f"{kind}-signed",
            anatomy,
            Gauge({space: signed}),
            None,
            record(Gauge({space: signed})),
        )
        moved = load_file(tmp_path / f"{kind}-signed/sae_weights.safetensors")
        state = torch.randn(7, 20, dtype=torch.float64)
        torch.testing.assert_close(
            signed.apply(state) @ moved["W_dec"].T, state @ content["W_dec"].T
        )
        torch.testing.assert_close(moved["W_dec"].norm(dim=1), content["W_dec"].norm(dim=1))
        assert (
            scaled.apply(content["W_dec"]).norm(dim=1) / content["W_dec"].norm(dim=1) - 1
        ).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_that_leave_their_dtype_are_refused_with_their_array(dtype, tmp_path):
    _, anatomy = wide(LLAMA)
    gauge = Gauge({"decoder/block.1/ffn": Monomial(np.arange(20), np.full(20, 4.0))})
    large = torch.full((20,), torch.finfo(dtype).max / 2, dtype=dtype)
    save_file(
        {"W_enc": large[:, None].repeat(1, 3), "W_dec": large.repeat(3, 1), "b_dec": large},
        tmp_path / "s.safetensors",
    )
    with pytest.raises(
        InputError, match=r"s\.safetensors: array (W_dec|b_dec) leaves the range of torch"
    ):
        transport_dictionary(
            tmp_path / "s.safetensors",
            tmp_path / "d.safetensors",
            anatomy,
            gauge,
            "decoder/block.1/ffn",
            record(gauge),
        )
    with pytest.raises(InputError, match=r"leaves the range of torch"):
        transport_vectors(
            tmp_path / "s.safetensors",
            tmp_path / "d.safetensors",
            anatomy,
            gauge,
            "decoder/block.1/ffn",
            record(gauge),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]
