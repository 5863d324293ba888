"""Artifacts act after transport as they did before, in their own formats; by the permutation alone
they do not.
"""

from __future__ import annotations

import copy
import dataclasses
import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.equivalence import deviation
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import apply_moves, tensor_moves, transformed
from normgauge.transport.adapters import moved_adapter, transport_adapter
from normgauge.transport.dictionaries import transport_dictionary
from normgauge.transport.optimizers import moved_state, transport_optimizer
from normgauge.transport.sidecar import Sidecar, read_sidecar
from normgauge.transport.vectors import transport_vectors
from unit.gauge_models import inputs_of, tiny

BASE, ORIGIN = "b" * 64, "a" * 64
LLAMA = ("llama", "LlamaForCausalLM")


def residual_gauge(anatomy, seed: int = 42) -> Gauge:
    return random_gauge(anatomy, seed, (anatomy.primary_stack.space,))


def record(gauge: Gauge) -> Sidecar:
    return Sidecar.of(gauge, BASE, ORIGIN)


def moved_by(transport, folder, anatomy, gauge, space):
    """`transport` from s.safetensors to d.safetensors in one folder."""
    source, destination = folder / "s.safetensors", folder / "d.safetensors"
    transport(source, destination, anatomy, gauge, space, record(gauge))


# ---------------------------------------------------------------- steering vectors and dictionaries


@pytest.mark.parametrize("ending", ["safetensors", "npz", "gguf"])
def test_steering_vectors_move_with_the_stream(tmp_path, ending):
    _, anatomy = tiny(*LLAMA)
    gauge = residual_gauge(anatomy)
    vectors = {"direction.3": torch.randn(12), "all": torch.randn(4, 12)}
    source, destination = tmp_path / f"v.{ending}", tmp_path / f"w.{ending}"
    save(source, vectors)
    transport_vectors(source, destination, anatomy, gauge, "residual", record(gauge))
    stream = torch.randn(5, 12)
    element = gauge.elements["residual"]
    for name, moved in load(destination).items():
        assert torch.equal(
            element.apply(stream) + moved.reshape(-1, 12)[0],
            element.apply(stream + vectors[name].reshape(-1, 12)[0]),
        )
    assert read_sidecar(destination) == Sidecar(
        BASE, ORIGIN, "native", {"residual": "signed permutation"}, {"residual": None}
    )
    back = tmp_path / f"x.{ending}"
    returned = dataclasses.replace(record(gauge), base_sha256=ORIGIN, origin_sha256=BASE)
    transport_vectors(destination, back, anatomy, gauge.inverse(), "residual", returned)
    assert all(torch.equal(value, vectors[name]) for name, value in load(back).items())
    # it was moved already
    with pytest.raises(InputError, match="belongs to the model bbbbbbbbbbbb"):
        transport_vectors(
            destination, tmp_path / f"y.{ending}", anatomy, gauge, "residual", record(gauge)
        )
    assert not (tmp_path / f"y.{ending}").exists()


def save(path, arrays):
    if path.suffix == ".gguf":
        writer = gguf.GGUFWriter(path, "controlvector")
        writer.add_string("controlvector.model_hint", "llama")
        for name, value in arrays.items():
            writer.add_tensor(name, value.numpy())
        written(writer)
    elif path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in arrays.items()})
    else:
        save_file(arrays, path)


def written(writer: gguf.GGUFWriter) -> None:
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()


def load(path):
    if path.suffix == ".gguf":
        reader = gguf.GGUFReader(path)
        assert reader.get_field("controlvector.model_hint").contents() == "llama"
        return {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    if path.suffix == ".npz":
        return {name: torch.from_numpy(value) for name, value in np.load(path).items()}
    return load_file(path)


def test_dictionaries_code_and_reconstruct_as_before(tmp_path):
    _, anatomy = tiny(*LLAMA)
    gauge = residual_gauge(anatomy)
    element = gauge.elements["residual"]
    generator = torch.Generator().manual_seed(1)
    arrays = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in {
            "W_enc": (12, 30),
            "W_dec": (30, 12),
            "b_enc": (30,),
            "b_dec": (12,),
        }.items()
    }
    linear = {
        "encoder.weight": arrays["W_enc"].T.contiguous(),
        "encoder.bias": arrays["b_enc"],
        "decoder.weight": arrays["W_dec"].T.contiguous(),
        "bias": arrays["b_dec"],
    }

    def reconstruct(stored, stream):
        codes = torch.relu((stream - stored["b_dec"]) @ stored["W_enc"] + stored["b_enc"])
        return codes, codes @ stored["W_dec"] + stored["b_dec"]

    stream = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    results = {}
    for name, used in {"signed": gauge, "permutation": gauge.without_signs()}.items():
        save_file(arrays, tmp_path / "s.safetensors")
        transport_dictionary(
            tmp_path / "s.safetensors",
            tmp_path / f"{name}.safetensors",
            anatomy,
            used,
            "residual",
            record(used),
        )
        results[name] = load_file(tmp_path / f"{name}.safetensors")
    codes, rebuilt = reconstruct(arrays, stream)
    moved_codes, moved = reconstruct(results["signed"], element.apply(stream))
    torch.testing.assert_close(moved_codes, codes, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moved, element.apply(rebuilt), rtol=1e-12, atol=1e-12)
    wrong = reconstruct(results["permutation"], element.apply(stream))[1]
    assert (wrong - element.apply(rebuilt)).square().sum() / rebuilt.square().sum() > 0.5
    save(tmp_path / "l.npz", linear)
    transport_dictionary(
        tmp_path / "l.npz", tmp_path / "m.npz", anatomy, gauge, "residual", record(gauge)
    )
    other = load(tmp_path / "m.npz")
    assert torch.equal(other["encoder.weight"], results["signed"]["W_enc"].T)
    assert torch.equal(other["decoder.weight"], results["signed"]["W_dec"].T)
    assert torch.equal(other["bias"], results["signed"]["b_dec"])
    (tmp_path / "cfg.json").write_text(json.dumps({"normalize_activations": "layer_norm"}))
    with pytest.raises(InputError, match="subtracts the mean"):
        transport_dictionary(
            tmp_path / "l.npz", tmp_path / "n.npz", anatomy, gauge, "residual", record(gauge)
        )
    for factor in (1.0, -1.0):  # the mean over coordinates changes its sign with them
        common = Gauge({"residual": Monomial(element.target, np.full(12, factor))})
        common_path = tmp_path / f"n{factor}.safetensors"
        transport_dictionary(
            tmp_path / "s.safetensors", common_path, anatomy, common, "residual", record(common)
        )
        moved_stream = torch.nn.functional.layer_norm(
            common.elements["residual"].apply(stream), (12,)
        )
        moved_codes, _ = reconstruct(load_file(common_path), moved_stream)
        codes, _ = reconstruct(arrays, torch.nn.functional.layer_norm(stream, (12,)))
        torch.testing.assert_close(moved_codes, codes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("arrays", "move", "message"),
    [
        ({"v": torch.ones(13)}, transport_vectors, "expected floating-point vectors of 12"),
        (
            {"v": torch.ones(12, dtype=torch.int64)},
            transport_vectors,
            "expected floating-point vectors",
        ),
        ({"W_enc": torch.ones(13, 4)}, transport_dictionary, "expected 12 along axis 0"),
        ({"W_other": torch.ones(12, 4)}, transport_dictionary, "W_other is unknown"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, arrays, move, message):
    _, anatomy = tiny(*LLAMA)
    gauge = residual_gauge(anatomy)
    save_file(arrays, tmp_path / "s.safetensors")
    with pytest.raises(InputError, match=message):
        move(
            tmp_path / "s.safetensors",
            tmp_path / "d.safetensors",
            anatomy,
            gauge,
            "residual",
            record(gauge),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_files_that_are_no_artifacts_are_refused(tmp_path):
    _, anatomy = tiny(*LLAMA)
    gauge = residual_gauge(anatomy)
    (tmp_path / "s.safetensors").write_bytes(b"nothing")
    np.savez(tmp_path / "pickled.npz", value=np.array([{}], dtype=object))
    (tmp_path / "s.pkl").write_bytes(b"")
    (tmp_path / "s.gguf").write_bytes(b"nothing")
    quantised = gguf.GGUFWriter(tmp_path / "q.gguf", "controlvector")
    kind = gguf.GGMLQuantizationType.Q8_0
    quantised.add_tensor(
        "direction.1", gguf.quants.quantize(np.ones((1, 32), np.float32), kind), raw_dtype=kind
    )
    written(quantised)
    with pytest.raises(InputError, match=r"tensor direction\.1 is Q8_0; expected F32 or F16"):
        transport_vectors(
            tmp_path / "q.gguf", tmp_path / "d.gguf", anatomy, gauge, "residual", record(gauge)
        )
    with pytest.raises(InputError, match="not a GGUF file"):
        transport_vectors(
            tmp_path / "s.gguf", tmp_path / "d.gguf", anatomy, gauge, "residual", record(gauge)
        )
    for name, message in (
        ("s.safetensors", "cannot be read"),
        ("pickled.npz", "cannot be read"),
        ("s.pkl", "unknown format"),
    ):
        destination = tmp_path / f"d{(tmp_path / name).suffix}"
        with pytest.raises(InputError, match=message):
            transport_vectors(
                tmp_path / name, destination, anatomy, gauge, "residual", record(gauge)
            )
    with pytest.raises(InputError, match="keeps its format"):
        transport_vectors(
            tmp_path / "s.safetensors",
            tmp_path / "d.npz",
            anatomy,
            gauge,
            "residual",
            record(gauge),
        )
    save_file({"v": torch.ones(12)}, tmp_path / "s.safetensors")
    with pytest.raises(InputError, match=r"does not move decoder/block\.1/ffn"):
        moved_by(transport_vectors, tmp_path, anatomy, gauge, "decoder/block.1/ffn")
    with pytest.raises(InputError, match="has no space 'stream'"):
        moved_by(transport_vectors, tmp_path, anatomy, gauge, "stream")
    (tmp_path / "s.safetensors.gauge.json").write_text(
        json.dumps(dataclasses.asdict(record(gauge)) | {"gains": "folded"})
    )
    with pytest.raises(
        InputError, match=r"gauge\.json: gains 'folded', expected one of native, absorbed"
    ):
        moved_by(transport_vectors, tmp_path, anatomy, gauge, "residual")
    (tmp_path / "s.safetensors.gauge.json").write_text("{}")
    with pytest.raises(InputError, match="not a record of a gauge"):
        moved_by(transport_vectors, tmp_path, anatomy, gauge, "residual")


@pytest.mark.parametrize(
    ("case", "architecture", "gauge", "message"),
    [
        (*LLAMA, Gauge({"residual": Monomial.random(13, 1)}), "13 coordinates, the model has 12"),
        (*LLAMA, Gauge({"stream": Monomial.random(12, 1)}), "no gauge moves 'stream'"),
        (
            "gpt2",
            "GPT2LMHeadModel",
            Gauge({"residual": Monomial.random(12, 1)}),
            "factors leave the group",
        ),
    ],
)
def test_gauges_of_another_model_or_outside_the_group_move_no_artifact(
    case, architecture, gauge, message, tmp_path
):
    _, anatomy = tiny(case, architecture)
    save_file({"v": torch.ones(12)}, tmp_path / "s.safetensors")
    state = {"state": {}, "param_groups": []}
    moves = (
        lambda: moved_by(transport_vectors, tmp_path, anatomy, gauge, "residual"),
        lambda: moved_by(transport_dictionary, tmp_path, anatomy, gauge, "residual"),
        lambda: moved_adapter({}, anatomy, gauge),
        lambda: moved_state(state, anatomy, gauge),
    )
    for move in moves:
        with pytest.raises(InputError, match=message):
            move()
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_the_record_says_what_was_done_to_gains_and_means(tmp_path):
    _, anatomy = tiny(*LLAMA)
    gauge = residual_gauge(anatomy)
    save_file({"v": torch.ones(12)}, tmp_path / "s.safetensors")
    said = Sidecar.of(
        gauge, BASE, ORIGIN, gains="absorbed", margins={"residual": 0.25}, centred=True
    )
    transport_vectors(
        tmp_path / "s.safetensors", tmp_path / "d.safetensors", anatomy, gauge, "residual", said
    )
    assert read_sidecar(tmp_path / "d.safetensors") == said
    stored = json.loads((tmp_path / "d.safetensors.gauge.json").read_text())
    assert stored["base_sha256"] == BASE
    assert (stored["gains"], stored["centred"], stored["margins"]) == (
        "absorbed",
        True,
        {"residual": 0.25},
    )
    with pytest.raises(InputError, match="gains 'folded'"):
        Sidecar.of(gauge, BASE, ORIGIN, gains="folded")


# ---------------------------------------------------------------- adapters


def adapter(anatomy, architecture_prefix: str = "base_model.model.") -> dict[str, torch.Tensor]:
    """Rank-2 LoRA factors on every map inside the blocks, float64, and an embedding update."""
    generator = torch.Generator().manual_seed(4)
    arrays = {}
    for item in {item.weight: item for item in anatomy.maps if "block" in item.name}.values():
        axes = anatomy.tensor(item.weight).axes
        module = f"{architecture_prefix}{item.weight.removesuffix('.weight')}"
        arrays[f"{module}.lora_A.weight"] = torch.randn(
            2, axes[item.input_axis].size, generator=generator, dtype=torch.float64
        )
        arrays[f"{module}.lora_B.weight"] = torch.randn(
            axes[1 - item.input_axis].size, 2, generator=generator, dtype=torch.float64
        )
    return arrays


def merged(checkpoint, anatomy, arrays, scale: float = 0.1):
    """The checkpoint with the update added to its weights, in float64, as PEFT merges it."""
    tensors = {name: value.double() for name, value in checkpoint.tensors.items()}
    for item in {item.weight: item for item in anatomy.maps}.values():
        module = f"base_model.model.{item.weight.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in arrays:
            update = scale * arrays[f"{module}.lora_B.weight"] @ arrays[f"{module}.lora_A.weight"]
            tensors[item.weight] = tensors[item.weight] + (
                update if item.input_axis == 1 else update.T
            )
    return dataclasses.replace(checkpoint, tensors=tensors)


@pytest.mark.parametrize(
    ("case", "architecture"),
    [LLAMA, ("gpt2", "GPT2LMHeadModel"), ("gpt_neox", "GPTNeoXForCausalLM")],
)
def test_an_adapter_acts_on_the_gauged_model_as_on_its_own(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    arrays = adapter(anatomy)
    gauge = random_gauge(anatomy, 42)
    moved_base = transformed(
        dataclasses.replace(
            checkpoint, tensors={n: v.double() for n, v in checkpoint.tensors.items()}
        ),
        anatomy,
        gauge,
    )
    own = build_model(merged(checkpoint, anatomy, arrays), "float64")
    there = build_model(
        merged(moved_base, anatomy, moved_adapter(arrays, anatomy, gauge)), "float64"
    )
    inputs = [inputs_of(case, architecture)]
    assert deviation(own, there, anatomy, gauge, inputs).relative <= 1e-10
    raw = build_model(merged(moved_base, anatomy, arrays), "float64")
    assert deviation(own, raw, anatomy, gauge, inputs).relative > 1e-3
    if case == "llama":
        control = build_model(
            merged(moved_base, anatomy, moved_adapter(arrays, anatomy, gauge.without_signs())),
            "float64",
        )
        assert deviation(own, control, anatomy, gauge, inputs).relative > 1e-3


def test_permutation_only_costs_twice_the_energy_of_the_update():
    """|T_G dW - T_P dW|^2 is four times the energy on negative coordinates: 2 |dW|^2 on average
    over signs.
    """
    _, anatomy = tiny(*LLAMA)
    name = "model.layers.0.mlp.up_proj.weight"
    update = torch.randn(20, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ratios = []
    for seed in range(42, 62):
        gauge = residual_gauge(anatomy, seed)
        signed = apply_moves(update, tensor_moves(anatomy, gauge)[name])
        permuted = apply_moves(update, tensor_moves(anatomy, gauge.without_signs())[name])
        error = (signed - permuted).square().sum()
        negative = update[:, gauge.elements["residual"].factors < 0].square().sum()
        torch.testing.assert_close(error, 4 * negative)
        ratios.append(float(error / update.square().sum()))
    assert np.mean(ratios) == pytest.approx(2, abs=4 * np.std(ratios) / np.sqrt(20))
    assert min(ratios) > 0.3


def test_adapter_folders_keep_their_format(tmp_path):
    _, anatomy = tiny(*LLAMA)
    gauge = random_gauge(anatomy, 42)
    source = tmp_path / "adapter"
    source.mkdir()
    (source / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4})
    )
    arrays = {name: value.float() for name, value in adapter(anatomy).items()}
    arrays["base_model.model.model.embed_tokens.lora_embedding_A"] = torch.randn(2, 17)
    arrays["base_model.model.model.embed_tokens.lora_embedding_B"] = torch.randn(12, 2)
    arrays["base_model.model.model.norm.weight"] = torch.rand(12)
    save_file(arrays, source / "adapter_model.safetensors", metadata={"format": "pt"})
    transport_adapter(source, tmp_path / "moved", anatomy, gauge, record(gauge))
    moved = load_file(tmp_path / "moved" / "adapter_model.safetensors")
    element = gauge.elements["residual"]
    assert set(moved) == set(arrays)
    embedding = "base_model.model.model.embed_tokens.lora_embedding_"
    assert torch.equal(moved[f"{embedding}A"], arrays[f"{embedding}A"])
    assert torch.equal(moved[f"{embedding}B"].T, element.apply(arrays[f"{embedding}B"].T))
    assert torch.equal(
        moved["base_model.model.model.norm.weight"],
        element.permutation().apply(arrays["base_model.model.model.norm.weight"]),
    )
    assert (tmp_path / "moved" / "adapter_config.json").read_text() == (
        source / "adapter_config.json"
    ).read_text()
    assert read_sidecar(tmp_path / "moved").base_sha256 == BASE
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    for destination in (source, tmp_path / "moved"):
        with pytest.raises(InputError, match="exists already"):
            transport_adapter(source, destination, anatomy, gauge, record(gauge))
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    for change, message in (
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ([], "peft_type is 'list'"),
        (
            {"peft_type": "LORA", "init_lora_weights": "pissa_niter_4"},
            "init_lora_weights 'pissa_niter_4' changes the base",
        ),
        ({"peft_type": "LORA", "init_lora_weights": "olora"}, "changes the base"),
        (
            {"peft_type": "LORA", "layer_replication": [[0, 2], [1, 2]]},
            "layer_replication makes another update",
        ),
    ):
        (source / "adapter_config.json").write_text(json.dumps(change))
        with pytest.raises(InputError, match=message):
            transport_adapter(source, tmp_path / "again", anatomy, gauge, record(gauge))
    (source / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    torch.save({"state": {}, "param_groups": []}, source / "optimizer.pt")
    with pytest.raises(InputError, match=r"old coordinates: optimizer\.pt; move them away first"):
        transport_adapter(source, tmp_path / "again", anatomy, gauge, record(gauge))
    (source / "optimizer.pt").unlink()
    (source / "adapter_model.safetensors").rename(source / "adapter_model.bin")
    with pytest.raises(
        InputError, match=r"no adapter_model\.safetensors; save the adapter as safetensors"
    ):
        transport_adapter(source, tmp_path / "again", anatomy, gauge, record(gauge))
    (source / "adapter_model.bin").rename(source / "adapter_model.safetensors")
    (source / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        transport_adapter(source, tmp_path / "again", anatomy, gauge, record(gauge))
    with pytest.raises(InputError, match=r"no tensor model\.other\.weight"):
        moved_adapter(
            {"base_model.model.model.other.lora_A.weight": torch.ones(2, 12)}, anatomy, gauge
        )
    with pytest.raises(InputError, match="does not fit"):
        moved_adapter(
            {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2, 13)},
            anatomy,
            gauge,
        )
    assert not (tmp_path / "again").exists()


# ---------------------------------------------------------------- optimizer state

OPTIMIZERS = {
    "adamw": lambda named: torch.optim.AdamW(named, lr=1e-2, amsgrad=True),
    "sgd": lambda named: torch.optim.SGD(named, lr=1e-2, momentum=0.9),
}


def train(model, optimizer, steps: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, 17, (4, 9), generator=generator)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


MALFORMED_STATES = (
    {"state": 3, "param_groups": []},
    {"state": {}, "param_groups": 3},
    {"state": {0: 3}, "param_groups": [{"params": [0]}]},
    {"state": {}, "param_groups": [3]},
    {"state": {}, "param_groups": [{}]},
    {
        "state": {0: {"exp_avg": 3}},
        "param_groups": [{"params": [0], "param_names": ["lm_head.weight"]}],
    },
    {"state": {}, "param_groups": [{"params": 3, "param_names": 4}]},
    {"state": [[]], "param_groups": [{"params": [[]]}]},
)


@pytest.mark.parametrize("number", range(len(MALFORMED_STATES)))
def test_malformed_optimizer_states_are_one_line(tmp_path, number):
    _, anatomy = tiny(*LLAMA)
    gauge = Gauge({"residual": Monomial.random(12, 42)})
    torch.save(MALFORMED_STATES[number], tmp_path / "state.pt")
    with pytest.raises(InputError):
        transport_optimizer(
            tmp_path / "state.pt", tmp_path / "moved.pt", anatomy, gauge, record(gauge)
        )
    assert not (tmp_path / "moved.pt").exists()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_resumes_on_the_same_trajectory(kind, tmp_path):
    checkpoint, anatomy = tiny(*LLAMA)
    gauge = Gauge(
        {"residual": Monomial.random(12, 42), "decoder/block.1/ffn": Monomial.random(20, 42)}
    )
    model = build_model(checkpoint, "float64").requires_grad_(True)
    optimizer = OPTIMIZERS[kind](list(model.named_parameters()))
    train(model, optimizer, 5, seed=1)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    warm = dataclasses.replace(
        checkpoint,
        tensors={name: value.detach().clone() for name, value in model.state_dict().items()},
    )
    moved = transformed(warm, anatomy, gauge)
    transport_optimizer(tmp_path / "state.pt", tmp_path / "moved.pt", anatomy, gauge, record(gauge))
    states = {
        "signed": torch.load(tmp_path / "moved.pt", weights_only=True),
        "permutation": moved_state(optimizer.state_dict(), anatomy, gauge.without_signs()),
    }
    before = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 5, seed=2)
    found = {}
    for name, state in states.items():
        resumed = build_model(moved, "float64").requires_grad_(True)
        other = OPTIMIZERS[kind](list(resumed.named_parameters()))
        other.load_state_dict(copy.deepcopy(state))  # the optimizer works in place
        train(resumed, other, 5, seed=2)
        found[name] = deviation(model, resumed, anatomy, gauge, [inputs_of(*LLAMA)]).relative
    assert found["signed"] <= 1e-9
    assert found["permutation"] > 1e-3
    assert read_sidecar(tmp_path / "moved.pt").groups["residual"] == "signed permutation"
    back = moved_state(states["signed"], anatomy, gauge.inverse())
    for number, entries in before["state"].items():
        for key, value in entries.items():
            assert value is None or torch.equal(
                torch.as_tensor(value), torch.as_tensor(back["state"][number][key])
            ), key


@pytest.mark.parametrize("named", [True, False])
def test_states_of_several_groups_need_the_names_of_each(named):
    """Two groups of equal shapes, in another order than the model's: names in the model's order
    would move each as the other.
    """
    checkpoint, anatomy = tiny(*LLAMA)
    gauge = Gauge({f"decoder/block.{block}/ffn": Monomial.random(20, block) for block in (1, 2)})
    grouped = [
        [f"model.layers.{block}.mlp.{kind}_proj.weight" for kind in ("down", "up")]
        for block in (1, 0)
    ]

    def optimizer_of(model):
        entries = [(name, model.get_parameter(name)) for group in grouped for name in group]
        return torch.optim.AdamW(
            [
                {"params": each if named else [value for _, value in each]}
                for each in (entries[:2], entries[2:])
            ],
            lr=1e-2,
        )

    model = build_model(checkpoint, "float64").requires_grad_(True)
    optimizer = optimizer_of(model)
    train(model, optimizer, 5, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    warm = dataclasses.replace(
        checkpoint,
        tensors={name: value.detach().clone() for name, value in model.state_dict().items()},
    )
    flat = sorted(name for group in grouped for name in group)
    with pytest.raises(InputError, match="give a list of names for each group"):
        moved_state(state, anatomy, gauge, flat)
    if not named:
        with pytest.raises(InputError, match="group 0 has 2 parameters and 0 names"):
            moved_state(state, anatomy, gauge)
    states = {
        "right": moved_state(state, anatomy, gauge, None if named else grouped),
        "wrong": moved_state(state, anatomy, gauge, grouped[::-1]),
    }
    train(model, optimizer, 5, seed=2)
    found = {}
    for name, each in states.items():
        resumed = build_model(transformed(warm, anatomy, gauge), "float64").requires_grad_(True)
        other = optimizer_of(resumed)
        other.load_state_dict(copy.deepcopy(each))
        train(resumed, other, 5, seed=2)
        found[name] = deviation(model, resumed, anatomy, gauge, [inputs_of(*LLAMA)]).relative
    assert found["right"] <= 1e-9
    assert found["wrong"] > 1e-3


def test_states_that_cannot_follow_are_refused(tmp_path):
    _, anatomy = tiny(*LLAMA)
    gauge = residual_gauge(anatomy)
    (tmp_path / "s.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read as a torch file"):
        transport_optimizer(tmp_path / "s.pt", tmp_path / "d.pt", anatomy, gauge, record(gauge))
    entry = {"exp_avg": torch.ones(12), "exp_avg_sq": torch.ones(12), "step": torch.tensor(1.0)}
    groups = [{"params": [0], "param_names": ["model.norm.weight"]}]
    good = {"state": {0: entry}, "param_groups": groups}
    assert moved_state(good, anatomy, gauge)["state"][0]["step"] == 1
    unnamed = {"state": {0: entry}, "param_groups": [{"params": [0]}]}
    assert moved_state(unnamed, anatomy, gauge, ["model.norm.weight"])["state"].keys() == {0}
    bad = [
        ({"state": {}}, gauge, None, "keys state and param_groups"),
        ({"state": {}, "param_groups": [{"lr": 1}]}, gauge, None, "list of groups with params"),
        ({"state": {}, "param_groups": 3}, gauge, None, "list of groups with params"),
        (
            {"state": {}, "param_groups": [{"params": [0, 1]}]},
            gauge,
            ["model.norm.weight"] * 2,
            "2 parameters and 1 names",
        ),
        (
            {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]},
            gauge,
            ["a", "b"],
            "2 parameter groups.*for each group",
        ),
        (
            {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]},
            gauge,
            [["a"], ["b"], []],
            "2 parameter groups",
        ),
        (
            {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]},
            gauge,
            [["a"], []],
            "group 1 has 1 parameters and 0 names",
        ),
        (
            {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]},
            gauge,
            [["a"], ["a"]],
            "2 parameters and 1 names",
        ),
        (
            {
                "state": {0: entry},
                "param_groups": [{"params": [0], "param_names": ["a"]}, {"params": [1]}],
            },
            gauge,
            None,
            "group 1 has 1",
        ),
        (
            {**good, "state": {0: {"exp_avg": torch.ones(12)}}},
            gauge,
            None,
            "model.norm.weight has exp_avg and no exp_avg_sq",
        ),
        ({**good, "state": {0: {"momentum_buffer": 1.0}}}, gauge, None, "has shape float"),
        ({**good, "state": {1: entry}}, gauge, None, "parameter 1 is None"),
        (unnamed, gauge, None, "1 parameters and 0 names"),
        (unnamed, gauge, ["model.other"], "'model.other'"),
        (
            {**good, "state": {0: {"momentum_buffer": torch.ones(3)}}},
            gauge,
            None,
            r"has shape \[3\]",
        ),
        (
            {**good, "state": {0: {"prodigy": torch.ones(12)}}},
            gauge,
            None,
            "prodigy of model.norm.weight is unknown",
        ),
        (good, Gauge({"residual": Orthogonal.random(12, 1)}), None, "signed permutations alone"),
        (
            good,
            Gauge({"decoder/block.1/ffn": Monomial(np.arange(20), np.full(20, 2.0))}),
            None,
            "signed permutations alone",
        ),
    ]
    for state, used, names, message in bad:
        with pytest.raises(InputError, match=message):
            moved_state(state, anatomy, used, names)
