"""The small trainers: determinism, the layout transformers reads, that something is learned, and
refusals.
"""

import hashlib
import json
import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from normgauge.calibration.batches import batches
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.errors import InputError
from normgauge.schemas.inputs import tables
from normgauge.training.optimise import next_token_loss
from normgauge.training.plan import rate_share
from normgauge.training.recipes import RECIPES, model_config
from normgauge.training.texts import END_OF_TEXT, split, train_tokenizer, unigram_entropy
from normgauge.training.train import train

SMOKE = ["gpt2-smoke", "llama-smoke"]


def prose(count, seed):
    """Sentences with an order to learn: every word has three possible successors."""
    generator = np.random.default_rng(seed)
    words = [
        "".join(generator.choice(list("abcdefghijklmnop"), size=generator.integers(2, 9)))
        for _ in range(400)
    ]
    successors = generator.integers(0, len(words), (len(words), 3))
    word, chosen = 0, []
    for _ in range(count):
        word = successors[word, generator.integers(3)]
        chosen.append(words[word])
    return " ".join(chosen)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "kjv.parquet"
    texts = [prose(8000, 0), prose(8000, 0)[::-1]]
    rows = [
        {
            "document": number,
            "name": str(number),
            "text": text,
            "payload": None,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        for number, text in enumerate(texts)
    ]
    tables.write(
        path, "corpus", rows, {"corpus": "kjv", "corpus_sha256": "0" * 64, "separator": "\n"}
    )
    return path


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folders = {recipe: tmp_path_factory.mktemp("trained") / recipe for recipe in SMOKE}
    for recipe, folder in folders.items():
        train(recipe, 42, corpus, folder, threads=1)
    return folders


def test_same_seed_same_bytes_another_seed_other_weights(corpus, trained, tmp_path):
    train("gpt2-smoke", 42, corpus, tmp_path / "again", threads=1)
    train("gpt2-smoke", 43, corpus, tmp_path / "other", threads=1)
    names = ["config.json", "model.safetensors", "tokenizer.json", "training.json"]
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == names
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (
            trained["gpt2-smoke"] / name
        ).read_bytes(), name
    assert (tmp_path / "other" / "tokenizer.json").read_bytes() == (
        trained["gpt2-smoke"] / "tokenizer.json"
    ).read_bytes()
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (
        trained["gpt2-smoke"] / "model.safetensors"
    ).read_bytes()


def test_the_caller_keeps_its_random_state_and_threads(corpus, tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    train("llama-smoke", 1, corpus, tmp_path / "model", threads=1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("recipe", SMOKE)
def test_transformers_reads_the_folder_and_gets_the_recorded_loss(corpus, trained, recipe):
    folder = trained[recipe]
    record = json.loads((folder / "training.json").read_text())
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {
        torch.float32
    }
    assert (record["recipe"], record["seed"], record["provenance"]) == (recipe, 42, "trained here")
    assert record["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert (
        record["tokens"] == RECIPES[recipe].steps * RECIPES[recipe].batch * RECIPES[recipe].context
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [
        token
        for row in tables.read(corpus, "corpus")
        for token in [*tokenizer.encode(row["text"]).ids, 0]
    ]
    held_out = torch.tensor(ids[: len(ids) // 256 * 256]).reshape(-1, 256)[49::50]
    with torch.no_grad():
        assert next_token_loss(model, held_out).item() == pytest.approx(
            record["held_out_loss"], abs=1e-4
        )


@pytest.mark.parametrize("recipe", SMOKE)
def test_something_is_learned(trained, recipe):
    record = json.loads((trained[recipe] / "training.json").read_text())
    assert record["held_out_loss"] < math.log(RECIPES[recipe].vocabulary) - 0.5


@pytest.mark.parametrize("recipe", SMOKE)
def test_the_folder_calibrates_itself(corpus, trained, recipe, tmp_path):
    config = AutoModelForCausalLM.from_pretrained(trained[recipe]).config
    path = tmp_path / "calibration.parquet"
    prepare(
        {"modality": "text", "calibration": "kjv"},
        trained[recipe],
        corpus,
        path,
        config=config,
        settings=Settings(4, 256),
    )
    (batch,) = batches(path, folder=trained[recipe], config=config)
    assert batch.inputs["input_ids"].shape == (4, 256)


def test_tokenizer_is_lossless_and_repeatable():
    texts = ["In the beginning\nwas the word, and the word was\n" * 3, "ä€ 😀"]
    tokenizers = [train_tokenizer(texts, 280) for _ in range(2)]
    assert tokenizers[0].to_str() == tokenizers[1].to_str()
    assert tokenizers[0].token_to_id(END_OF_TEXT) == 0
    assert all(
        tokenizers[0].decode(tokenizers[0].encode(text).ids) == text
        for text in [*texts, "Ж漢 unseen"]
    )


@pytest.mark.parametrize(
    ("name", "parameters"), [("gpt2-nano", 8_467_968), ("llama-nano", 9_980_160)]
)
def test_nano_recipes_are_what_they_say(name, parameters):
    import transformers

    recipe = RECIPES[name]
    with torch.device("meta"):
        model = getattr(transformers, recipe.architecture)(model_config(recipe))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert (recipe.width, recipe.blocks) == (256, 4)
    assert model.config.tie_word_embeddings == (name == "gpt2-nano")
    biases = [key for key, _ in model.named_parameters() if key.endswith("bias")]
    assert bool(biases) == (name == "gpt2-nano")


def test_loss_is_that_of_the_next_token():
    sequences = torch.tensor([[3, 1, 4, 1], [0, 2, 2, 4]])

    def successor(input_ids, use_cache):
        logits = torch.zeros(*input_ids.shape, 5).scatter(2, input_ids.roll(-1, 1)[..., None], 3.0)
        return SimpleNamespace(logits=logits)

    assert next_token_loss(successor, sequences).item() == pytest.approx(
        math.log(math.exp(3) + 4) - 3
    )


def test_held_out_sequences_are_spread_and_apart():
    training, held_out = split(torch.arange(110)[:, None])
    assert held_out.flatten().tolist() == [49, 99]
    assert sorted(training.flatten().tolist() + held_out.flatten().tolist()) == list(range(110))


def test_learning_rate_rises_then_falls_to_a_tenth():
    shares = [rate_share("cosine", step, 10, 100) for step in range(101)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == shares[10] == pytest.approx(1)
    assert shares[100] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in pairwise(shares[10:]))


def test_unigram_entropy_of_a_uniform_stream():
    assert unigram_entropy(np.arange(64).repeat(3)) == pytest.approx(math.log(64))


def test_bad_input_is_refused_and_nothing_is_written(corpus, tmp_path):
    short = tmp_path / "short.parquet"
    row = {"document": 0, "name": "x", "text": "too short", "payload": None, "sha256": "0"}
    tables.write(short, "corpus", [row], {"corpus": "kjv", "corpus_sha256": "0"})
    images = tmp_path / "images.parquet"
    tables.write(
        images,
        "corpus",
        [row | {"text": None, "payload": b"x"}],
        {"corpus": "images", "corpus_sha256": "0"},
    )
    for arguments, message in [
        (("gpt3", 42, corpus), "unknown recipe 'gpt3': expected one of gpt2-nano, llama-nano"),
        (("gpt2-smoke", 42, short), "short.parquet: too small for gpt2-smoke"),
        (("gpt2-smoke", 42, images), "images.parquet: expected a corpus with text"),
    ]:
        with pytest.raises(InputError, match=message):
            train(*arguments, tmp_path / "model", threads=1)
    with pytest.raises(InputError, match="threads 0"):
        train("gpt2-smoke", 42, corpus, tmp_path / "model", threads=0)
    assert not (tmp_path / "model").exists()
