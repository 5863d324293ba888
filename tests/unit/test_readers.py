"""Containers: what is written comes back, and every malformed file is refused with one line that
names it.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
import zipfile

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from normgauge.checkpoints.readers import (
    ctranslate2_reader,
    gguf_reader,
    safetensors_reader,
    torch_reader,
)
from normgauge.errors import InputError

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b.bias": torch.tensor([1.5, -2.0], dtype=torch.float16),
}


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


# safetensors


def safetensors_bytes(header, payload):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_safetensors_round_trip(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = safetensors_reader.read(tmp_path)
    assert {
        name: torch.equal(weights.tensors[name], tensor) for name, tensor in TENSORS.items()
    } == dict.fromkeys(TENSORS, True)
    assert weights.stored == {"a.weight": "F32", "b.bias": "F16"}
    assert weights.files == (tmp_path / "model.safetensors",)


MALFORMED_SAFETENSORS = {
    "empty file": (b"", "header length"),
    "length beyond the file": (struct.pack("<Q", 1 << 40) + b"{}", "header length"),
    "not json": (safetensors_bytes(b"{not json}", b""), "not valid JSON"),
    "not an object": (safetensors_bytes(b"[1, 2]", b""), "JSON object"),
    "same name twice": (safetensors_bytes(b'{"a": {}, "a": {}}', b""), "'a' occurs twice"),
    "missing key": (safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "tensor a"),
    "unknown dtype": (safetensors_bytes({"a": entry(dtype="F31")}, bytes(8)), "dtype F31"),
    "eight-bit float": (
        safetensors_bytes({"a": entry(dtype="F8_E4M3", offsets=(0, 2))}, bytes(2)),
        "tensor a has dtype F8_E4M3",
    ),
    "negative dimension": (safetensors_bytes({"a": entry(shape=(-2,))}, bytes(8)), "shape [-2]"),
    "boolean dimension": (
        safetensors_bytes({"a": entry(shape=(True,), offsets=(0, 4))}, bytes(4)),
        "shape [true]",
    ),
    "negative offset": (
        safetensors_bytes({"a": entry(offsets=(-8, 0))}, bytes(8)),
        "data_offsets [-8, 0]",
    ),
    "reversed offsets": (
        safetensors_bytes({"a": entry(offsets=(8, 0))}, bytes(8)),
        "data_offsets [8, 0]",
    ),
    "size is not shape x dtype": (
        safetensors_bytes({"a": entry(shape=(3,))}, bytes(8)),
        "spans 8 bytes",
    ),
    "overlap": (
        safetensors_bytes({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
        "tensor b at offset 4 overlaps",
    ),
    "hole": (
        safetensors_bytes({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)),
        "tensor b at offset 12 leaves a hole of 4 bytes",
    ),
    "hole at the start": (
        safetensors_bytes({"a": entry(offsets=(4, 12))}, bytes(12)),
        "hole of 4 bytes",
    ),
    "truncated payload": (safetensors_bytes({"a": entry()}, bytes(7)), "payload of 7 bytes"),
    "dtype that is a list": (
        safetensors_bytes({"a": entry(dtype=["F32"])}, bytes(8)),
        "dtype ['F32']",
    ),
    "metadata that are no text": (
        safetensors_bytes({"__metadata__": {"a": 5}, "a": entry()}, bytes(8)),
        "safetensors library refuses",
    ),
    "dimension beyond 64 bits": (
        safetensors_bytes({"a": entry(shape=(0, 1 << 70), offsets=(0, 0))}, b""),
        "below 2^63",
    ),
    "dimension of 4000 digits": (
        safetensors_bytes({"a": entry(shape=(10**4000, 10**4000))}, bytes(8)),
        "below 2^63",
    ),
    "number of 5000 digits": (
        safetensors_bytes(b'{"a": ' + b"9" * 5000 + b"}", b""),
        "not valid JSON",
    ),
    "a hundred dimensions": (
        safetensors_bytes({"a": entry(shape=(1,) * 100, offsets=(0, 4))}, bytes(4)),
        "at most 64",
    ),
    "bytes after the payload": (safetensors_bytes({"a": entry()}, bytes(9)), "payload of 9 bytes"),
}


@pytest.mark.parametrize("case", MALFORMED_SAFETENSORS)
def test_malformed_safetensors(tmp_path, case):
    content, words = MALFORMED_SAFETENSORS[case]
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(lambda: safetensors_reader.read(tmp_path), "model.safetensors", words)


def write_shards(folder, weight_map=None):
    save_file({"a.weight": TENSORS["a.weight"]}, folder / "one.safetensors")
    save_file({"b.bias": TENSORS["b.bias"]}, folder / "two.safetensors")
    weight_map = weight_map or {"a.weight": "one.safetensors", "b.bias": "two.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_sharded_safetensors(tmp_path):
    write_shards(tmp_path)
    weights = safetensors_reader.read(tmp_path)
    assert set(weights.tensors) == set(TENSORS)
    assert [path.name for path in weights.files] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        (
            {"a.weight": "one.safetensors", "b.bias": "three.safetensors"},
            ("three.safetensors", "shard missing"),
        ),
        (
            {"a.weight": "one.safetensors", "b.bias": "two.safetensors", "c": "two.safetensors"},
            ("two.safetensors", "tensor c missing"),
        ),
        (
            {"a.weight": "one.safetensors", "b.bias": "one.safetensors"},
            ("one.safetensors", "tensor b.bias missing"),
        ),
        (
            {"c": "one.safetensors", "b.bias": "two.safetensors", "a.weight": "one.safetensors"},
            ("tensor c missing",),
        ),
        ({"a.weight": "one.safetensors", "b.bias": "../two.safetensors"}, ("plain file name",)),
        ({"a.weight": ""}, ("plain file name",)),
        ({"a.weight": 3}, ("weight_map",)),
        ([], ("weight_map",)),
    ],
)
def test_shards_that_disagree_with_their_index(tmp_path, weight_map, words):
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    refused(lambda: safetensors_reader.read(tmp_path), *words)


def test_an_index_with_a_number_of_5000_digits(tmp_path):
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": ' + "9" * 5000 + "}")
    refused(
        lambda: safetensors_reader.read(tmp_path),
        "model.safetensors.index.json",
        "thousands of digits",
    )


def test_a_shard_with_an_unlisted_tensor(tmp_path):
    write_shards(tmp_path, {"b.bias": "two.safetensors"})
    save_file(TENSORS, tmp_path / "two.safetensors")
    refused(
        lambda: safetensors_reader.read(tmp_path),
        "two.safetensors",
        "tensor a.weight is not listed",
    )


# torch


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_round_trip(tmp_path, zipped):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    weights = torch_reader.read(tmp_path)
    assert all(torch.equal(weights.tensors[name], tensor) for name, tensor in TENSORS.items())
    assert weights.stored == {"a.weight": "F32", "b.bias": "F16"}


class Payload:
    """Pickles to a call that leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("container", ["torch", "pickle"])
def test_pickled_code_is_refused_and_not_run(tmp_path, container):
    witness, path = tmp_path / "witness", tmp_path / "pytorch_model.bin"
    content = {"a": TENSORS["a.weight"], "b": Payload(witness)}
    if container == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps({"b": Payload(witness)}))
    refused(
        lambda: torch_reader.read(tmp_path),
        "pytorch_model.bin",
        "refused: the file holds pickled objects beyond tensors",
    )
    assert not witness.exists()
    # the payload is live: unpickling it does leave the file
    pickle.loads(pickle.dumps(Payload(witness)))
    assert witness.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": 3}, "entry 'a' is a int"),
        ([torch.zeros(2)], "found list"),
        ({}, "expected a dictionary"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "tensor a is stored as torch.complex64"),
        (
            {"a": torch.zeros(1).expand(10**7, 10**6)},
            "tensor a of shape [10000000, 1000000] is larger than what the file stores",
        ),
        (
            {"a": torch.empty(2, device="meta")},
            "tensor a of shape [2] is larger than what the file stores",
        ),
    ],
)
def test_torch_files_that_are_no_state_dictionaries(tmp_path, content, words):
    torch.save(content, tmp_path / "state_dict.pt")
    refused(lambda: torch_reader.read(tmp_path), "state_dict.pt", words)


@pytest.mark.parametrize("keep", [0, 10, 700])
def test_truncated_torch_file(tmp_path, keep):
    torch.save(TENSORS, tmp_path / "full")
    (tmp_path / "pytorch_model.bin").write_bytes((tmp_path / "full").read_bytes()[:keep])
    refused(lambda: torch_reader.read(tmp_path), "pytorch_model.bin")


def test_damaged_torch_files(tmp_path):
    """Whatever the unpickler makes of a flipped byte: the file reads, or one line refuses it."""
    torch.save(TENSORS, tmp_path / "full", _use_new_zipfile_serialization=False)
    content = (tmp_path / "full").read_bytes()
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        (tmp_path / "pytorch_model.bin").write_bytes(damaged)
        with contextlib.suppress(InputError):
            torch_reader.read(tmp_path)


def repacked(path, edit=lambda name, content: content, compression=zipfile.ZIP_STORED):
    """Write the archive of TENSORS again with each record's content edited."""
    torch.save(TENSORS, path.with_name("full"))
    with (
        zipfile.ZipFile(path.with_name("full")) as source,
        zipfile.ZipFile(path, "w", compression) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, edit(member.filename, source.read(member)))


def test_repacked_torch_file(tmp_path):
    """The control of the refusals below: without an edit the same way of writing gives a file that
    reads as it should.
    """
    repacked(tmp_path / "pytorch_model.bin")
    read = torch_reader.read(tmp_path).tensors
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize(
    ("length", "compression", "words"),
    [
        (0, zipfile.ZIP_STORED, "record full/data/0 has 0 bytes of 0, its tensors need 24"),
        (12, zipfile.ZIP_STORED, "record full/data/0 has 12 bytes of 12, its tensors need 24"),
        (28, zipfile.ZIP_STORED, "record full/data/0 has 28 bytes of 28, its tensors need 24"),
        (24, zipfile.ZIP_DEFLATED, "record full/data.pkl is compressed; expected stored values"),
    ],
)
def test_records_that_are_not_their_tensors_values(tmp_path, length, compression, words):
    repacked(
        tmp_path / "pytorch_model.bin",
        lambda name, content: (content * 2)[:length] if name.endswith("data/0") else content,
        compression,
    )
    refused(lambda: torch_reader.read(tmp_path), "pytorch_model.bin", words)


class Makes:
    """Pickles to a call of bytearray, which torch's restricted unpickler allows."""

    def __init__(self, size):
        self.size = size

    def __reduce__(self):
        return (bytearray, (self.size,))


def torch_pickles(content):
    """A torch file of the older kind without storages."""
    parts = (
        torch.serialization.MAGIC_NUMBER,
        torch.serialization.PROTOCOL_VERSION,
        {"little_endian": True},
        content,
        [],
    )
    return b"".join(pickle.dumps(part, protocol=2) for part in parts)


@pytest.mark.parametrize("older", [True, False])
def test_memory_is_not_made_of_a_number_in_a_pickle(tmp_path, older):
    """A file of some hundred bytes asks for 8 GB; the control is the same file asking for 8 bytes,
    which torch makes.
    """
    for size in (8, 1 << 33):
        content = {"a": Makes(size)}
        path = tmp_path / "pytorch_model.bin"
        if older:
            path.write_bytes(torch_pickles(content))
        else:
            torch.save(content, path)
        if size == 8:
            assert torch.load(path, weights_only=True) == {"a": bytearray(8)}
        refused(
            lambda: torch_reader.read(tmp_path), "holds pickled objects beyond tensors (bytearray)"
        )


def test_a_storage_whose_values_are_not_listed(tmp_path):
    """torch would leave it as the memory happened to be."""
    path = tmp_path / "pytorch_model.bin"
    torch.save(
        {"a": torch.ones(3), "b": torch.zeros(3)}, path, _use_new_zipfile_serialization=False
    )
    assert set(torch_reader.read(tmp_path).tensors) == {"a", "b"}
    content = path.read_bytes()
    end = content.rindex(b"e.")  # of the list of keys
    second = content.rindex(b"X", 0, end)
    path.write_bytes(content[:second] + content[end:])
    assert len(torch.load(path, weights_only=True)) == 2
    refused(lambda: torch_reader.read(tmp_path), "does not list the storages that its tensors need")


def test_storages_larger_than_their_file(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    count = content.index(b"cpu") + 3
    while content[count : count + 2] != b"K\x03":  # the number of values, one byte
        count += 1
    path.write_bytes(content[:count] + b"J" + struct.pack("<i", 1 << 30) + content[count + 2 :])
    refused(lambda: torch_reader.read(tmp_path), f"its tensors need {4 << 30} bytes")


def test_a_record_that_reaches_into_the_next_one(tmp_path):
    """The directory states the right size, but fewer bytes lie between this record's header and the
    next.
    """
    path = tmp_path / "pytorch_model.bin"
    repacked(path, lambda name, content: content[:12] if name.endswith("data/0") else content)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"full/data/0") - 46
    assert content[entry : entry + 4] == b"PK\x01\x02"
    content[entry + 20 : entry + 28] = struct.pack("<II", 24, 24)
    path.write_bytes(content)
    refused(
        lambda: torch_reader.read(tmp_path),
        "record full/data/0 has 12 bytes of 24, its tensors need 24",
    )


def test_a_directory_that_takes_one_record_for_another(tmp_path):
    """Both records have the size that is asked for, and torch would read the first one twice."""
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(3), "b": torch.ones(3)}, path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("pytorch_model/data/0").header_offset
    entry = content.rindex(b"pytorch_model/data/1") - 46
    content[entry + 42 : entry + 46] = struct.pack("<I", place)
    path.write_bytes(content)
    mapped = torch.load(path, weights_only=True, mmap=True)
    assert torch.equal(mapped["a"], mapped["b"])  # the fault that is refused
    refused(lambda: torch_reader.read(tmp_path), "pytorch_model.bin", "File name in directory")


def test_torch_records_of_every_kind_are_read(tmp_path):
    shared = torch.arange(8, dtype=torch.float64)
    tensors = {
        "view": shared[2:5],
        "whole": shared,
        "empty": torch.zeros(0),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    read = torch_reader.read(tmp_path).tensors
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_sharded_torch_files(tmp_path):
    torch.save({"a.weight": TENSORS["a.weight"]}, tmp_path / "one.bin")
    torch.save({"b.bias": TENSORS["b.bias"]}, tmp_path / "two.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": "one.bin", "b.bias": "two.bin"}}))
    assert set(torch_reader.read(tmp_path).tensors) == set(TENSORS)
    index.write_text(json.dumps({"weight_map": {"a.weight": "two.bin", "b.bias": "two.bin"}}))
    refused(lambda: torch_reader.read(tmp_path), "two.bin", "tensor a.weight missing")


# GGUF

WIDTH, HEADS, GROUPS, FFN, VOCABULARY = 64, 4, 2, 32, 40


def llama_tensors(seed=0):
    """Tensors of a one-block Llama under GGUF names, values of the model's own row order."""
    generator = np.random.default_rng(seed)
    shapes = {
        "token_embd.weight": (VOCABULARY, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (WIDTH * GROUPS // HEADS, WIDTH),
        "blk.0.attn_v.weight": (WIDTH * GROUPS // HEADS, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (FFN, WIDTH),
        "blk.0.ffn_up.weight": (FFN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, FFN),
    }
    return {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def write_gguf(path, tensors, family="llama", quantised=(), **fields):
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_token_list(["<a>", "b"])
    for key, value in fields.items():
        writer.add_string(f"{family}.{key.replace('__', '.')}", value)
    for name, tensor in tensors.items():
        if name in quantised:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight, heads):
    """llama.cpp's row order: within each head, row i of the first half is followed by row i of the
    second.
    """
    first, second = np.split(weight.reshape(heads, -1, weight.shape[1]), 2, axis=1)
    return np.stack([first, second], axis=2).reshape(weight.shape)


def test_gguf_round_trip(tmp_path):
    tensors = llama_tensors()
    written = dict(tensors)
    written["blk.0.attn_q.weight"] = interleaved(tensors["blk.0.attn_q.weight"], HEADS)
    written["blk.0.attn_k.weight"] = interleaved(tensors["blk.0.attn_k.weight"], GROUPS)
    written["blk.0.attn_v.weight"] = tensors["blk.0.attn_v.weight"].astype(np.float16)
    write_gguf(tmp_path / "tiny.gguf", written, quantised=("token_embd.weight",))
    weights = gguf_reader.read(tmp_path)
    block = "model.layers.0"
    for name, source in (
        (f"{block}.self_attn.q_proj", "attn_q"),
        (f"{block}.self_attn.k_proj", "attn_k"),
        (f"{block}.mlp.down_proj", "ffn_down"),
    ):
        assert np.array_equal(
            weights.tensors[f"{name}.weight"].numpy(), tensors[f"blk.0.{source}.weight"]
        ), name
    assert weights.stored["model.embed_tokens.weight"] == "Q8_0"
    assert weights.stored[f"{block}.self_attn.v_proj.weight"] == "F16"
    assert weights.stored["model.norm.weight"] == "F32"
    embedding = weights.tensors["model.embed_tokens.weight"].numpy()
    step = np.abs(tensors["token_embd.weight"]).max() / 127
    assert 0 < np.abs(embedding - tensors["token_embd.weight"]).max() < step
    config = gguf_reader.stored_config(tmp_path)
    assert (
        config["rms_norm_eps"],
        config["rope_parameters"]["rope_theta"],
        config["head_dim"],
        config["tie_word_embeddings"],
    ) == (
        1e-5,
        1e5,
        16,
        True,
    )


def test_qwen_rows_are_not_interleaved(tmp_path):
    tensors = llama_tensors()
    write_gguf(tmp_path / "tiny.gguf", tensors, family="qwen2")
    query = gguf_reader.read(tmp_path).tensors["model.layers.0.self_attn.q_proj.weight"].numpy()
    assert np.array_equal(query, tensors["blk.0.attn_q.weight"])


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, llama_tensors())
    return path.read_bytes()


def patched(content, position, code, value):
    data = bytearray(content)
    struct.pack_into(f"<{code}", data, position, value)
    return bytes(data)


def entry_position(content, name):
    """Where the fields after a tensor's name start in the header."""
    raw = name.encode()
    return content.index(struct.pack("<Q", len(raw)) + raw) + 8 + len(raw)


MALFORMED_GGUF = {
    "empty": (lambda content: b"", "truncated"),
    "magic": (lambda content: b"GGML" + content[4:], "does not start with 'GGUF'"),
    "version": (lambda content: patched(content, 4, "I", 1), "GGUF version 1"),
    "big-endian version": (
        lambda content: content[:4] + struct.pack(">I", 3) + content[8:],
        "GGUF version",
    ),
    "tensor count": (lambda content: patched(content, 8, "Q", 1 << 60), "tiny.gguf: "),
    "field count": (lambda content: patched(content, 16, "Q", 1 << 60), "tiny.gguf: "),
    "key length": (lambda content: patched(content, 24, "Q", 1 << 60), "truncated: key"),
    "header cut": (lambda content: content[:200], "truncated"),
    "payload cut": (lambda content: content[:-33], "payload"),
    "payload padded": (lambda content: content + bytes(64), "payload"),
    "rank": (
        lambda content: patched(content, entry_position(content, "token_embd.weight"), "I", 9),
        "tensor token_embd.weight has 9 dimensions",
    ),
    "dimension": (
        lambda content: patched(
            content, entry_position(content, "token_embd.weight") + 4, "Q", 1 << 50
        ),
        "tensor output_norm.weight at offset",
    ),
    "no rows": (
        lambda content: patched(content, entry_position(content, "token_embd.weight") + 12, "Q", 0),
        "tensor token_embd.weight has shape [0, 64], so it holds nothing",
    ),
    "type": (
        lambda content: patched(
            content, entry_position(content, "token_embd.weight") + 20, "I", 999
        ),
        "tensor token_embd.weight has type 999",
    ),
    "block size": (
        lambda content: patched(
            patched(content, entry_position(content, "token_embd.weight") + 4, "Q", 63),
            entry_position(content, "token_embd.weight") + 20,
            "I",
            8,
        ),
        "rows of 63 values",
    ),
    "overlap": (
        lambda content: patched(
            content, entry_position(content, "output_norm.weight") + 16, "Q", 32
        ),
        "overlaps",
    ),
    "hole": (
        lambda content: patched(
            content, entry_position(content, "blk.0.ffn_down.weight") + 24, "Q", 1 << 20
        ),
        "hole",
    ),
    "same tensor twice": (
        lambda content: content.replace(b"blk.0.ffn_norm.weight", b"blk.0.ffn_gate.weight"),
        "occurs twice",
    ),
    "same key twice": (
        lambda content: content.replace(b"llama.context_length", b"general.architecture"),
        "'general.architecture' occurs twice",
    ),
    "value type": (
        lambda content: patched(content, entry_position(content, "general.architecture"), "I", 77),
        "value type 77",
    ),
    "array count": (
        lambda content: patched(
            content, entry_position(content, "tokenizer.ggml.tokens") + 8, "Q", 1 << 40
        ),
        "truncated: value of tokenizer.ggml.tokens",
    ),
}


@pytest.mark.parametrize("case", MALFORMED_GGUF)
def test_malformed_gguf(tmp_path, gguf_content, case):
    change, words = MALFORMED_GGUF[case]
    changed = change(gguf_content)
    assert changed != gguf_content
    (tmp_path / "tiny.gguf").write_bytes(changed)
    refused(lambda: gguf_reader.read(tmp_path), "tiny.gguf", words)


def test_gguf_that_cannot_be_mapped(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, llama_tensors(), family="mamba")
    refused(
        lambda: gguf_reader.read(tmp_path),
        "architecture 'mamba'",
        "gemma2, gemma3, gpt2, llama, qwen2, qwen3, t5, t5encoder",
    )
    write_gguf(path, llama_tensors(), rope__scaling__type="yarn")
    refused(lambda: gguf_reader.read(tmp_path), "key llama.rope.scaling.type is yarn")
    write_gguf(path, {**llama_tensors(), "rope_freqs.weight": np.ones(32, np.float32)})
    refused(lambda: gguf_reader.read(tmp_path), "tensor rope_freqs.weight has no place")
    write_gguf(path, {**llama_tensors(), "blk.0.attn_norm.scale": np.ones(32, np.float32)})
    refused(lambda: gguf_reader.read(tmp_path), "tensor blk.0.attn_norm.scale has no place")
    write_gguf(tmp_path / "other.gguf", llama_tensors())
    refused(lambda: gguf_reader.read(tmp_path), "2 GGUF files")


# CTranslate2

CT2_WIDTH, CT2_HEADS, CT2_FFN, CT2_VOCABULARY = 8, 2, 16, 12
CODES = {
    np.dtype(np.float16): 4,
    np.dtype(np.float32): 0,
    np.dtype(np.int8): 1,
    np.dtype(np.int16): 2,
}


def whisper_variables(seed=0):
    """Variables of a Whisper with one block in each stack."""
    generator = np.random.default_rng(seed)
    width, ffn = CT2_WIDTH, CT2_FFN

    def values(*shape):
        return generator.standard_normal(shape).astype(np.float16)

    variables = {}

    def linear(name, rows, columns, *, keys=None):
        variables[f"{name}/weight"], variables[f"{name}/bias"] = values(rows, columns), values(rows)
        if keys:
            variables[f"{name}/bias"][keys] = 0

    def norm(name):
        variables[f"{name}/gamma"], variables[f"{name}/beta"] = values(width), values(width)

    variables["encoder/conv1/weight"], variables["encoder/conv1/bias"] = (
        values(width, 5, 3),
        values(width),
    )
    variables["encoder/conv2/weight"], variables["encoder/conv2/bias"] = (
        values(width, width, 3),
        values(width),
    )
    variables["decoder/embeddings/weight"] = values(CT2_VOCABULARY, width)
    for stack, positions in (("encoder", 6), ("decoder", 4)):
        variables[f"{stack}/num_heads"] = np.array(CT2_HEADS, np.int16)
        variables[f"{stack}/position_encodings/encodings"] = values(positions, width)
        norm(f"{stack}/layer_norm")
        block = f"{stack}/layer_0"
        norm(f"{block}/self_attention/layer_norm")
        linear(f"{block}/self_attention/linear_0", 3 * width, width, keys=slice(width, 2 * width))
        linear(f"{block}/self_attention/linear_1", width, width)
        norm(f"{block}/ffn/layer_norm")
        linear(f"{block}/ffn/linear_0", ffn, width)
        linear(f"{block}/ffn/linear_1", width, ffn)
    norm("decoder/layer_0/attention/layer_norm")
    linear("decoder/layer_0/attention/linear_0", width, width)
    linear("decoder/layer_0/attention/linear_1", 2 * width, width, keys=slice(0, width))
    linear("decoder/layer_0/attention/linear_2", width, width)
    variables["decoder/activation"] = np.array(3, np.int8)
    variables["decoder/pre_norm"] = np.array(1, np.int8)
    return variables


def ct2_string(text):
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def ct2_variable(name, values):
    head = struct.pack(
        f"<B{values.ndim}IBI", values.ndim, *values.shape, CODES[values.dtype], values.nbytes
    )
    return ct2_string(name) + head + values.tobytes()


def ct2_bytes(
    variables,
    aliases=(("decoder/projection/weight", "decoder/embeddings/weight"),),
    version=6,
    spec="WhisperSpec",
):
    body = b"".join(ct2_variable(name, values) for name, values in variables.items())
    tail = struct.pack("<I", len(aliases)) + b"".join(
        ct2_string(alias) + ct2_string(name) for alias, name in aliases
    )
    return (
        struct.pack("<I", version)
        + ct2_string(spec)
        + struct.pack("<II", 3, len(variables))
        + body
        + tail
    )


def test_ctranslate2_round_trip(tmp_path):
    variables = whisper_variables()
    (tmp_path / "model.bin").write_bytes(ct2_bytes(variables))
    config = ctranslate2_reader.stored_config(tmp_path)
    assert (
        config["d_model"],
        config["num_mel_bins"],
        config["encoder_layers"],
        config["decoder_attention_heads"],
    ) == (8, 5, 1, 2)
    assert (
        config["max_source_positions"],
        config["max_target_positions"],
        config["vocab_size"],
    ) == (6, 4, 12)
    assert config["tie_word_embeddings"] is True
    weights = ctranslate2_reader.read(tmp_path)
    fused = variables["decoder/layer_0/self_attention/linear_0/weight"]
    own = "model.decoder.layers.0.self_attn"
    for position, part in enumerate(("q_proj", "k_proj", "v_proj")):
        assert np.array_equal(
            weights.tensors[f"{own}.{part}.weight"].numpy(), fused[8 * position : 8 * position + 8]
        )
    assert f"{own}.k_proj.bias" not in weights.tensors
    assert np.array_equal(
        weights.tensors[f"{own}.v_proj.bias"].numpy(),
        variables["decoder/layer_0/self_attention/linear_0/bias"][16:],
    )
    assert set(weights.stored.values()) == {"F16"}


def test_ctranslate2_without_alias_is_not_tied(tmp_path):
    variables = whisper_variables() | {
        "decoder/projection/weight": np.ones((CT2_VOCABULARY, CT2_WIDTH), np.float16)
    }
    (tmp_path / "model.bin").write_bytes(ct2_bytes(variables, aliases=()))
    assert ctranslate2_reader.stored_config(tmp_path)["tie_word_embeddings"] is False
    assert ctranslate2_reader.read(tmp_path).tensors["proj_out.weight"].eq(1).all()


def with_variable(name, values):
    return ct2_bytes(whisper_variables() | {name: values})


def without_variable(name):
    return ct2_bytes({key: value for key, value in whisper_variables().items() if key != name})


def key_bias():
    variables = whisper_variables()
    variables["encoder/layer_0/self_attention/linear_0/bias"][CT2_WIDTH] = 0.5
    return ct2_bytes(variables)


def one_variable(head):
    return (
        struct.pack("<I", 6)
        + ct2_string("WhisperSpec")
        + struct.pack("<II", 3, 1)
        + ct2_string("a")
        + head
    )


MALFORMED_CT2 = {
    "empty": (lambda: b"", "truncated: version"),
    "version": (lambda: ct2_bytes(whisper_variables(), version=5), "version 5"),
    "spec": (
        lambda: ct2_bytes(whisper_variables(), spec="TransformerSpec"),
        "spec TransformerSpec",
    ),
    "torch file": (lambda: b"PK\3\4" + bytes(100), "container version"),
    "cut in a value": (lambda: ct2_bytes(whisper_variables())[:900], "truncated"),
    "cut in the aliases": (lambda: ct2_bytes(whisper_variables())[:-5], "truncated"),
    "bytes at the end": (
        lambda: ct2_bytes(whisper_variables()) + b"x",
        "1 bytes after the last alias",
    ),
    "string without NUL": (lambda: struct.pack("<IH", 6, 3) + b"abc", "NUL-terminated"),
    "dtype": (
        lambda: one_variable(struct.pack("<BIBI", 1, 2, 9, 4)),
        "variable a has dtype code 9",
    ),
    "size": (lambda: one_variable(struct.pack("<BIBI", 1, 2, 4, 6)), "variable a holds 6 bytes"),
    "overflowing shape": (
        lambda: one_variable(struct.pack("<B3IBI", 3, *(1 << 31,) * 3, 4, 0)),
        "variable a holds 0 bytes",
    ),
    "size beyond the file": (
        lambda: one_variable(struct.pack("<BIBI", 1, 1 << 30, 4, 1 << 31)),
        "truncated: values of a",
    ),
    "dangling alias": (
        lambda: ct2_bytes(whisper_variables(), aliases=(("a", "b"),)),
        "alias a of b",
    ),
    "duplicate alias": (
        lambda: ct2_bytes(whisper_variables(), aliases=(("a", "decoder/activation"),) * 2),
        "alias a",
    ),
    "impossible shape": (
        lambda: one_variable(struct.pack("<B3IBI", 3, 0, *((1 << 32) - 1,) * 2, 4, 0)),
        "impossible shape [0, 4294967295",
    ),
    "setting that is no number": (
        lambda: with_variable("decoder/pre_norm", np.array(np.nan, np.float32)),
        "setting decoder/pre_norm is nan",
    ),
    "no heads": (
        lambda: with_variable("encoder/num_heads", np.array(-2, np.int16)),
        "setting encoder/num_heads is -2",
    ),
    "missing variable": (
        lambda: without_variable("decoder/layer_0/ffn/linear_1/bias"),
        "decoder/layer_0/ffn/linear_1/bias missing",
    ),
    "alias of a missing embedding": (
        lambda: without_variable("decoder/embeddings/weight"),
        "decoder/projection/weight of decoder/embeddings/weight",
    ),
    "unknown variable": (
        lambda: with_variable("decoder/adapter/weight", np.ones((2, 2), np.float16)),
        "decoder/adapter/weight has no place",
    ),
    "unknown setting": (
        lambda: with_variable("decoder/sliding_window", np.array(4, np.int16)),
        "setting decoder/sliding_window = 4",
    ),
    "other activation": (
        lambda: with_variable("decoder/activation", np.array(0, np.int8)),
        "setting decoder/activation is 0",
    ),
    "quantised": (
        lambda: with_variable(
            "decoder/embeddings/weight", np.ones((CT2_VOCABULARY, CT2_WIDTH), np.int8)
        ),
        "quantised",
    ),
    "key bias": (key_bias, "is not zero on the keys"),
    "rank": (
        lambda: with_variable("encoder/conv1/weight", np.ones((8, 5), np.float16)),
        "encoder/conv1/weight has shape [8, 5]",
    ),
    "bias of another length": (
        lambda: with_variable("decoder/layer_0/ffn/linear_1/bias", np.ones(3, np.float16)),
        "decoder/layer_0/ffn/linear_1",
    ),
}


@pytest.mark.parametrize("case", MALFORMED_CT2)
def test_malformed_ctranslate2(tmp_path, case):
    content, words = MALFORMED_CT2[case]
    (tmp_path / "model.bin").write_bytes(content())
    refused(lambda: ctranslate2_reader.read(tmp_path), "model.bin", words)


def test_ctranslate2_variable_twice(tmp_path):
    variable = ct2_variable("a", np.ones(2, np.float16))
    content = (
        struct.pack("<I", 6)
        + ct2_string("WhisperSpec")
        + struct.pack("<II", 3, 2)
        + 2 * variable
        + struct.pack("<I", 0)
    )
    (tmp_path / "model.bin").write_bytes(content)
    refused(lambda: ctranslate2_reader.read(tmp_path), "variable a occurs twice")
