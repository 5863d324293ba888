"""Reader of GGUF files of the Llama, Qwen2 and Qwen3 architectures; quantised values are dequantised to fp32.

Layout, little-endian: "GGUF", u32 version, u64 number of tensors, u64 number of key/value pairs; the pairs (string key, u32 type, value);
the tensor entries (string name, u32 rank, u64 dimensions with the fastest first, u32 type, u64 offset); padding; the payload, aligned.
Source: the ggml project, docs/gguf.md. Block sizes and dequantisation come from the `gguf` package.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from normgauge.checkpoints.readers import Weights
from normgauge.checkpoints.readers.cursor import Cursor
from normgauge.errors import InputError

SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
BLOCK_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: name, shape with the slowest dimension first, type, and its byte range in the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """The key/value pairs of a file and its tensor entries."""

    fields: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


def _string(cursor: Cursor, what: str) -> str:
    (length,) = cursor.numbers("Q", what)
    try:
        return bytes(cursor.take(length, what)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{cursor.path}: {what} is not UTF-8 text; the file is malformed") from error


def _value(cursor: Cursor, kind: int, what: str) -> Any:
    if kind in SCALARS:
        return cursor.numbers(SCALARS[GGUFValueType(kind)], what)[0]
    if kind == GGUFValueType.STRING:
        return _string(cursor, what)
    if kind != GGUFValueType.ARRAY:
        raise InputError(f"{cursor.path}: {what} has value type {kind}; the file is malformed")
    item, count = cursor.numbers("IQ", what)
    if item not in SCALARS and item != GGUFValueType.STRING:
        raise InputError(f"{cursor.path}: {what} is an array of value type {item}; expected numbers or strings")
    if count > cursor.left:  # every item needs at least one byte; checked before anything of that length is made
        raise InputError(f"{cursor.path}: truncated: {what} claims {count} items at offset {cursor.position}; fetch the file again")
    return [_value(cursor, item, what) for _ in range(count)]


def _file(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise InputError(f"{folder}: {len(files)} GGUF files; keep the one to be measured (source.path may name it)")
    return files[0]


def holds(folder: Path) -> bool:
    return any(folder.glob("*.gguf"))


def check_header(path: Path) -> Header:
    """Parse and check everything before the payload.

    Raises InputError naming the file and key or tensor for: wrong magic or version, counts and lengths beyond the file, duplicate names,
    unknown types, dimensions that do not fit the quantisation blocks, misaligned, overlapping or separated tensors, a truncated payload.
    """
    cursor = Cursor(path)
    if bytes(cursor.take(4, "magic")) != b"GGUF":
        raise InputError(f"{path}: does not start with 'GGUF'; not a GGUF file")
    (version,) = cursor.numbers("I", "version")
    if version not in (2, 3):
        raise InputError(f"{path}: GGUF version {version}, expected 2 or 3 (little-endian); convert the file again")
    tensor_count, field_count = cursor.numbers("QQ", "counts")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = _string(cursor, "key")
        if key in fields:
            raise InputError(f"{path}: key {key!r} occurs twice; the file is malformed")
        (kind,) = cursor.numbers("I", f"type of {key}")
        fields[key] = _value(cursor, kind, f"value of {key}")
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        raise InputError(f"{path}: general.alignment is {alignment!r}; expected a positive multiple of 8")
    payload = _align(cursor.position, alignment)
    _check_layout(path, entries, payload, alignment, len(cursor.data))
    placed = (TensorEntry(entry.name, entry.shape, entry.type, payload + entry.start, entry.size) for entry in entries)
    return Header(fields, tuple(placed))


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _tensor_entry(cursor: Cursor) -> TensorEntry:
    name = _string(cursor, "tensor name")
    (rank,) = cursor.numbers("I", f"rank of {name}")
    if not 1 <= rank <= 4:
        raise InputError(f"{cursor.path}: tensor {name} has {rank} dimensions; expected 1 to 4")
    dimensions = cursor.numbers(f"{rank}Q", f"shape of {name}")
    if not all(dimensions):
        raise InputError(f"{cursor.path}: tensor {name} has shape {list(reversed(dimensions))}, so it holds nothing; the file is malformed")
    code, offset = cursor.numbers("IQ", f"type and offset of {name}")
    try:
        kind = GGMLQuantizationType(code)
    except ValueError as error:
        raise InputError(f"{cursor.path}: tensor {name} has type {code}, which the gguf package does not know") from error
    block, size = GGML_QUANT_SIZES[kind]
    if dimensions[0] % block:
        raise InputError(f"{cursor.path}: tensor {name} has rows of {dimensions[0]} values, {kind.name} needs a multiple of {block}")
    return TensorEntry(name, tuple(reversed(dimensions)), kind, offset, math.prod(dimensions) // block * size)


def _check_layout(path: Path, entries: list[TensorEntry], payload: int, alignment: int, file_size: int) -> None:
    names: set[str] = set()
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.name in names:
            raise InputError(f"{path}: tensor {entry.name} occurs twice; the file is malformed")
        names.add(entry.name)
        expected = _align(position, alignment)
        if entry.start != expected:
            fault = "overlaps the tensor before it or is misaligned" if entry.start < expected else "leaves a hole before it"
            raise InputError(f"{path}: tensor {entry.name} at offset {entry.start} {fault}, expected {expected}; the file is malformed")
        position = entry.start + entry.size
    if not payload + position <= file_size <= payload + _align(position, alignment):
        raise InputError(
            f"{path}: payload of {file_size - payload} bytes, the entries describe {position}; truncated or padded, fetch it again"
        )


def stored_config(folder: Path) -> dict[str, Any]:
    """The keys of the transformers config that the file's metadata stand for."""
    path = _file(folder)
    return _config(path, check_header(path))


def _config(path: Path, header: Header) -> dict[str, Any]:
    fields = header.fields
    family = fields.get("general.architecture")
    if family not in CLASSES:
        raise InputError(f"{path}: GGUF architecture {family!r}; known are {', '.join(CLASSES)}: use the model's safetensors instead")

    def count(key: str, default: int | None = None) -> int:
        value = fields.get(f"{family}.{key}", default)
        if type(value) is not int or value <= 0:
            raise InputError(f"{path}: key {family}.{key} is {value}; expected one positive integer")
        return value

    scaling = fields.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none":
        raise InputError(f"{path}: rotary scaling {scaling!r} in a GGUF file is not supported; use the model's safetensors instead")
    shapes = {entry.name: entry.shape for entry in header.tensors}
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise InputError(f"{path}: tensor token_embd.weight missing or not a matrix; the file does not hold a whole {family} model")
    width, heads = count("embedding_length"), count("attention.head_count")
    tokens = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return {
        "model_type": family,
        "architectures": [CLASSES[family]],
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": width,
        "num_hidden_layers": count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": count("attention.head_count_kv"),
        "head_dim": count("attention.key_length", width // heads),
        "intermediate_size": count("feed_forward_length"),
        "max_position_embeddings": count("context_length"),
        "rope_theta": _decimal(path, fields, f"{family}.rope.freq_base"),
        "rms_norm_eps": _decimal(path, fields, f"{family}.attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in shapes,
        **{key: fields.get(f"tokenizer.ggml.{name}") for key, name in tokens.items()},
    }


def _decimal(path: Path, fields: dict[str, Any], key: str) -> float:
    """The decimal number that was rounded to fp32 when the file was written: 9.99999975e-06 is 1e-05."""
    value = fields.get(key)
    if not isinstance(value, float) or not value > 0:
        raise InputError(f"{path}: key {key} is {value}; expected a positive number")
    return float(str(np.float32(value)))


def read(folder: Path) -> Weights:
    """The weights under the names of the transformers class, dequantised to fp32 (fp16 and bf16 stay as stored).

    llama.cpp interleaves the two rotary halves of every head's query and key rows; the order of transformers is restored.
    Raises InputError for a tensor that the class has no place for.
    """
    path = _file(folder)
    header = check_header(path)
    config = _config(path, header)
    data = np.memmap(path, mode="r")
    tensors, stored = {}, {}
    for entry in header.tensors:
        name = _class_name(path, entry.name)
        tensor = _values(path, data, entry)
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if name.endswith("q_proj.weight") else "num_key_value_heads"]
            tensor = _halves(path, entry.name, tensor, heads)
        tensors[name], stored[name] = tensor, entry.type.name
    return Weights(tensors, stored, (path,))


def _class_name(path: Path, name: str) -> str:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    module = match and (BLOCK_MODULES if match[1] else MODULES).get(match[2])
    if not match or not module:
        raise InputError(f"{path}: tensor {name} has no place in a Llama or Qwen model; use the model's safetensors instead")
    return f"model.layers.{match[1]}.{module}.{match[3]}" if match[1] else f"{module}.{match[3]}"


def _values(path: Path, data: np.ndarray, entry: TensorEntry) -> torch.Tensor:
    raw = data[entry.start : entry.start + entry.size]
    if entry.type == GGMLQuantizationType.F16:
        return torch.from_numpy(raw.view(np.float16).reshape(entry.shape).copy())
    if entry.type == GGMLQuantizationType.BF16:
        return torch.from_numpy(raw.view(np.int16).reshape(entry.shape).copy()).view(torch.bfloat16)
    try:
        values = gguf.dequantize(raw.reshape(*entry.shape[:-1], -1), entry.type)
    except NotImplementedError as error:
        raise InputError(f"{path}: tensor {entry.name} is stored as {entry.type.name}, which the gguf package cannot dequantise") from error
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(entry.shape))


def _halves(path: Path, name: str, weight: torch.Tensor, heads: int) -> torch.Tensor:
    if weight.ndim != 2 or weight.shape[0] % (2 * heads):
        raise InputError(f"{path}: tensor {name} has shape {list(weight.shape)}, which does not split into {heads} heads")
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
