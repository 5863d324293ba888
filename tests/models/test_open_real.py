"""Every embedded real checkpoint opens, builds strictly in both dtypes, and computes what it
should.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch

from normgauge.checkpoints.building import build_model, reinitialise
from real import MODELS, SCEPTR_VARIANTS, opened, real_folder

pytestmark = pytest.mark.network

EXPECTED = {  # class, parameters (without fixed tables), stored dtypes
    "minilm-l6": ("BertModel", 22_713_216, {"F32"}),
    "rxnfp-pretrained": ("BertForPreTraining", 6_741_841, {"F32"}),
    "rxnfp-ft-10k": ("BertForSequenceClassification", 6_687_282, {"F32"}),
    "rxnfp-ft": ("BertModel", 6_674_432, {"F32"}),
    "smollm2-135m": ("LlamaForCausalLM", 134_515_008, {"F32", "Q4_1", "Q8_0"}),
    "whisper-tiny-en": ("WhisperForConditionalGeneration", 37_760_256, {"F16"}),
}


def inputs(model_id, config, dtype):
    generator = torch.Generator().manual_seed(7)
    if model_id == "whisper-tiny-en":
        noise = torch.randn(
            1,
            config.num_mel_bins,
            2 * config.max_source_positions,
            generator=generator,
            dtype=torch.float64,
        )
        return {
            "input_features": noise.to(dtype),
            "decoder_input_ids": torch.tensor([[50257, 50362, 440]]),
        }
    if model_id in SCEPTR_VARIANTS:
        return {"input_ids": receptor(config)}
    return {"input_ids": torch.randint(5, config.vocab_size, (2, 12), generator=generator)}


def receptor(config):
    """Two sequences of two compartments, the second one shorter and padded."""
    long = [
        [2, 0, 0, 0],
        *[[3 + i, i + 1, 6, 1] for i in range(6)],
        *[[12 + i, i + 1, 4, config.compartments] for i in range(4)],
    ]
    short = [[2, 0, 0, 0], [7, 1, 1, 2]]
    return torch.tensor([long, short + [[0, 0, 0, 0]] * (len(long) - len(short))])


@pytest.mark.parametrize("model_id", MODELS)
def test_opens_builds_and_runs(model_id):
    checkpoint = opened(model_id)
    outputs = {}
    for forward_dtype in ("float32", "float64"):
        model = build_model(checkpoint, forward_dtype)
        dtype = getattr(torch, forward_dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        with torch.no_grad():
            output = model(**inputs(model_id, checkpoint.config, dtype))[0]
        assert output.dtype == dtype
        assert output.isfinite().all()
        outputs[forward_dtype] = output.double()
    deviation = (outputs["float32"] - outputs["float64"]).norm() / outputs["float64"].norm()
    assert 1e-9 < deviation < 1e-4
    if model_id in EXPECTED:
        name, parameters, stored = EXPECTED[model_id]
        assert (type(model).__name__, sum(tensor.numel() for tensor in model.parameters())) == (
            name,
            parameters,
        )
        assert set(checkpoint.stored.values()) == stored


def test_smollm2_predicts_english():
    from transformers import AutoTokenizer

    folder = real_folder("smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)
    text = "The capital of France is Paris, and the capital of Germany is Berlin."
    ids = tokenizer(text, return_tensors="pt").input_ids
    checkpoint = opened("smollm2-135m")
    with torch.no_grad():
        loss = build_model(checkpoint, "float32")(ids, labels=ids).loss.item()
        shuffled = dict(checkpoint.tensors)
        # undo the row order of one query map: it must matter
        name = "model.layers.0.self_attn.q_proj.weight"
        shuffled[name] = shuffled[name].unflatten(0, (9, 2, -1)).transpose(1, 2).flatten(0, 2)
        broken = build_model(
            type(checkpoint)(checkpoint.config, shuffled, checkpoint.stored, checkpoint.files),
            "float32",
        )
        broken_loss = broken(ids, labels=ids).loss.item()
    assert loss < 0.25 * math.log(checkpoint.config.vocab_size)
    assert broken_loss > loss + 0.05


def test_smollm2_equals_the_reading_of_transformers():
    from transformers import AutoModelForCausalLM

    folder = real_folder("smollm2-135m")
    name = next(folder.glob("*.gguf")).name
    reference = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.float32
    ).state_dict()
    ours = opened("smollm2-135m").tensors
    assert set(reference) - set(ours) == {"lm_head.weight"}
    assert [tensor for tensor in ours if not torch.equal(ours[tensor], reference[tensor])] == []


def test_whisper_values_are_the_stored_bytes():
    folder = real_folder("whisper-tiny-en")
    checkpoint = opened("whisper-tiny-en")
    raw = (folder / "model.bin").read_bytes()
    # fused keys and values of the cross attention
    name = b"decoder/layer_2/attention/linear_1/weight\0"
    header = raw.index(struct.pack("<H", len(name)) + name) + 2 + len(name)
    assert struct.unpack_from("<B2IBI", raw, header) == (2, 768, 384, 4, 768 * 384 * 2)
    fused = np.frombuffer(raw, np.float16, 768 * 384, header + struct.calcsize("<B2IBI")).reshape(
        768, 384
    )
    layer = "model.decoder.layers.2.encoder_attn"
    for part, rows in (("k_proj", slice(0, 384)), ("v_proj", slice(384, 768))):
        assert np.array_equal(checkpoint.tensors[f"{layer}.{part}.weight"].numpy(), fused[rows])
    model = build_model(checkpoint, "float32")
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight
    # Whisper's sinusoids, stored: sines then cosines
    positions = model.model.encoder.embed_positions.weight
    angles = torch.arange(1500)[:, None] * torch.exp(-math.log(10000) / 191 * torch.arange(192))
    assert (positions - torch.cat([angles.sin(), angles.cos()], dim=1)).abs().max() < 2e-3


def test_whisper_speaks_its_own_language():
    """On silence the trained decoder is far from uniform, and opens with a time stamp or a blank
    rather than a random token.
    """
    checkpoint = opened("whisper-tiny-en")
    model = build_model(checkpoint, "float32")
    silence = torch.full((1, 80, 3000), -1.0)
    with torch.no_grad():
        logits = model(input_features=silence, decoder_input_ids=torch.tensor([[50257]])).logits[
            0, -1
        ]
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    assert entropy < 0.5 * math.log(checkpoint.config.vocab_size)


def test_rxnfp_base_and_fine_tune_share_their_shapes():
    base, tuned = opened("rxnfp-pretrained").tensors, opened("rxnfp-ft").tensors
    shared = [name for name in tuned if f"bert.{name}" in base]
    assert len(shared) == len(tuned)
    assert all(tuned[name].shape == base[f"bert.{name}"].shape for name in shared)


def test_the_twin_of_a_blosum_variant_keeps_the_matrix():
    checkpoint = opened("sceptr-blosum")
    twin = reinitialise(checkpoint, 42, "float32").state_dict()
    table = "_token_embedder._blosum_embedding._blosum_embeddings"
    assert torch.equal(twin[table], checkpoint.tensors[table])
    projector = "_self_attention_stack._initial_projector.weight"
    assert not torch.equal(twin[projector], checkpoint.tensors[projector])
