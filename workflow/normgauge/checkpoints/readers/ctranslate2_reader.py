"""Reader of Whisper checkpoints in CTranslate2's container, version 6 (`model.bin`).

Layout, little-endian; a string is a u16 length and that many bytes, the last one NUL:
u32 version, string spec name, u32 spec revision, u32 number of variables, then for each variable
string name, u8 rank, rank x u32 dimensions, u8 dtype, u32 number of bytes, the values;
then u32 number of aliases, each two strings (alias, variable).
Source: the CTranslate2 project, python/ctranslate2/specs/model_spec.py (container) and
    whisper_spec.py (names).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgauge.checkpoints.readers import Weights
from normgauge.checkpoints.readers.cursor import Cursor
from normgauge.errors import InputError, one_line

FILE = "model.bin"
VERSION, SPEC = 6, "WhisperSpec"
DTYPES = {
    0: torch.float32,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.float16,
    5: torch.bfloat16,
}
STORED = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
GELU = 3  # CTranslate2's activation code

# What the transformers class computes; a container that says otherwise cannot be mapped onto it.
REQUIRED_SETTINGS = {
    "decoder/activation": GELU,
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
    "encoder/activation": GELU,
    "encoder/pre_norm": 1,
    "encoder/scale_embeddings": 0,
}
# used for time stamps only
IGNORED_SETTINGS = {"decoder/alignment_heads", "decoder/alignment_layer"}


@dataclass(frozen=True)
class Container:
    """The variables of a container by name and its aliases (alias -> variable)."""

    variables: dict[str, torch.Tensor]
    aliases: dict[str, str]


def _string(cursor: Cursor, what: str) -> str:
    (length,) = cursor.numbers("H", what)
    raw = bytes(cursor.take(length, what))
    if not raw.endswith(b"\0") or b"\0" in raw[:-1] or not raw.isascii():
        raise InputError(
            f"{cursor.path}: {what} is not a NUL-terminated ASCII string; the file is malformed"
        )
    return raw[:-1].decode("ascii")


def holds(folder: Path) -> bool:
    return (folder / FILE).is_file()


@one_line("a CTranslate2 model")
def parse(path: Path) -> Container:
    """Read a version 6 WhisperSpec container.

    Raises InputError for another version or spec, truncation, bytes after the end, duplicate names,
    unknown dtypes, a byte count that is not shape x dtype, and aliases without a variable.
    """
    cursor = Cursor(path)
    (version,) = cursor.numbers("I", "version")
    if version != VERSION:
        raise InputError(
            f"{path}: CTranslate2 container version {version}, expected {VERSION}; convert the "
            "model with a current CTranslate2"
        )
    spec = _string(cursor, "spec name")
    if spec != SPEC:
        raise InputError(
            f"{path}: CTranslate2 spec {spec}; only {SPEC} is known: use the model's safetensors "
            "instead"
        )
    _, count = cursor.numbers("II", "spec revision and number of variables")
    variables: dict[str, torch.Tensor] = {}
    for _ in range(count):
        name, tensor = _variable(cursor)
        if name in variables:
            raise InputError(f"{path}: variable {name} occurs twice; the file is malformed")
        variables[name] = tensor
    (count,) = cursor.numbers("I", "number of aliases")
    aliases: dict[str, str] = {}
    for _ in range(count):
        alias, name = _string(cursor, "alias"), _string(cursor, "alias target")
        if name not in variables or alias in variables or alias in aliases:
            raise InputError(
                f"{path}: alias {alias} of {name} is dangling or a duplicate; the file is malformed"
            )
        aliases[alias] = name
    if cursor.left:
        raise InputError(f"{path}: {cursor.left} bytes after the last alias; the file is malformed")
    return Container(variables, aliases)


def _variable(cursor: Cursor) -> tuple[str, torch.Tensor]:
    name = _string(cursor, "variable name")
    (rank,) = cursor.numbers("B", f"rank of {name}")
    shape = cursor.numbers(f"{rank}I", f"shape of {name}")
    code, size = cursor.numbers("BI", f"dtype and size of {name}")
    if code not in DTYPES:
        raise InputError(
            f"{cursor.path}: variable {name} has dtype code {code}; expected one of "
            f"{sorted(DTYPES)}"
        )
    dtype = DTYPES[code]
    if size != math.prod(shape) * dtype.itemsize:
        raise InputError(
            f"{cursor.path}: variable {name} holds {size} bytes, {dtype} {list(shape)} needs "
            f"{math.prod(shape) * dtype.itemsize}"
        )
    # a copy: variables are not aligned in the file
    values = bytearray(cursor.take(size, f"values of {name}"))
    try:
        return name, torch.frombuffer(values, dtype=dtype).reshape(shape) if size else torch.empty(
            shape, dtype=dtype
        )
    # strides beyond 64 bits, though a dimension of 0 leaves no values
    except RuntimeError as error:
        raise InputError(
            f"{cursor.path}: variable {name} has the impossible shape {list(shape)}; the file is "
            "malformed"
        ) from error


@one_line("a CTranslate2 model")
def stored_config(folder: Path) -> dict[str, Any]:
    """The keys of a transformers WhisperConfig, derived from the container's shapes and settings
    (its config.json is not one).
    """
    path = folder / FILE
    return _config(path, parse(path))


def _config(path: Path, container: Container) -> dict[str, Any]:
    variables = container.variables
    vocabulary, width = _variable_shape(path, variables, "decoder/embeddings/weight", 2)
    # English-only models have one token fewer
    end_of_text = 50256 if vocabulary == 51864 else 50257
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": vocabulary,
        "d_model": width,
        "num_mel_bins": _variable_shape(path, variables, "encoder/conv1/weight", 3)[1],
        "max_source_positions": _variable_shape(
            path, variables, "encoder/position_encodings/encodings", 2
        )[0],
        "max_target_positions": _variable_shape(
            path, variables, "decoder/position_encodings/encodings", 2
        )[0],
        **{f"{stack}_layers": _layers(variables, stack) for stack in ("encoder", "decoder")},
        **{
            f"{stack}_attention_heads": _setting(path, variables, f"{stack}/num_heads")
            for stack in ("encoder", "decoder")
        },
        **{
            f"{stack}_ffn_dim": _variable_shape(
                path, variables, f"{stack}/layer_0/ffn/linear_0/weight", 2
            )[0]
            for stack in ("encoder", "decoder")
        },
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": container.aliases.get("decoder/projection/weight")
        == "decoder/embeddings/weight",
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": end_of_text,
        "decoder_start_token_id": end_of_text + 1,
    }


def _variable_shape(
    path: Path, variables: dict[str, torch.Tensor], name: str, rank: int
) -> tuple[int, ...]:
    if name not in variables:
        raise InputError(
            f"{path}: variable {name} missing; the file does not hold a whole Whisper model"
        )
    if variables[name].ndim != rank:
        raise InputError(
            f"{path}: variable {name} has shape {list(variables[name].shape)}, expected {rank} "
            "dimensions"
        )
    return tuple(variables[name].shape)


def _setting(path: Path, variables: dict[str, torch.Tensor], name: str) -> int:
    _variable_shape(path, variables, name, 0)
    value = _whole(path, name, variables[name])
    if value < 1:
        raise InputError(
            f"{path}: setting {name} is {value}, expected at least 1; the file is malformed"
        )
    return value


def _whole(path: Path, name: str, value: torch.Tensor) -> int:
    if value.is_floating_point() and not value.isfinite():
        raise InputError(
            f"{path}: setting {name} is {value.item()}, expected a whole number; the file is "
            "malformed"
        )
    return int(value)


def _layers(variables: dict[str, torch.Tensor], stack: str) -> int:
    found = (re.match(rf"{stack}/layer_(\d+)/", name) for name in variables)
    return len({match[1] for match in found if match})


@one_line("a CTranslate2 model")
def read(folder: Path) -> Weights:
    """The weights under the names of WhisperForConditionalGeneration, values as stored.

    Fused projections are cut into query, key and value. Whisper's key projection has no bias: the
    fused bias must hold zeros there. Raises InputError for a variable that the class has no place
    for, a missing one, a non-zero key bias, or quantised weights.
    """
    path = folder / FILE
    container = parse(path)
    config = _config(path, container)
    variables = dict(container.variables)
    _check_settings(path, variables)
    tensors = dict(_named(path, variables, config))
    if variables:
        raise InputError(
            f"{path}: variable {min(variables)} has no place in WhisperForConditionalGeneration "
            f"({len(variables)} such)"
        )
    return Weights(
        tensors, {name: STORED[tensor.dtype] for name, tensor in tensors.items()}, (path,)
    )


def _check_settings(path: Path, variables: dict[str, torch.Tensor]) -> None:
    for name, tensor in variables.items():
        if tensor.ndim and tensor.dtype not in STORED:
            raise InputError(
                f"{path}: variable {name} is stored as {tensor.dtype}; quantised CTranslate2 "
                "weights are not supported"
            )
    for name in [name for name, tensor in variables.items() if tensor.ndim == 0]:
        value = _whole(path, name, variables.pop(name))
        if REQUIRED_SETTINGS.get(name, value) != value:
            raise InputError(
                f"{path}: setting {name} is {value}, expected {REQUIRED_SETTINGS[name]}: not a "
                "transformers Whisper model"
            )
        if (
            name not in REQUIRED_SETTINGS
            and name not in IGNORED_SETTINGS
            and not name.endswith("/num_heads")
        ):
            raise InputError(
                f"{path}: setting {name} = {value} is unknown; it may change what the model "
                "computes"
            )


def _named(
    path: Path, variables: dict[str, torch.Tensor], config: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pop variables and yield them as (transformers name, tensor)."""

    def pop(name: str) -> torch.Tensor:
        if name not in variables:
            raise InputError(
                f"{path}: variable {name} missing; the file does not hold a whole Whisper model"
            )
        return variables.pop(name)

    def norm(source: str, target: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{target}.weight", pop(f"{source}/gamma")
        yield f"{target}.bias", pop(f"{source}/beta")

    def linear(source: str, *targets: str) -> Iterator[tuple[str, torch.Tensor]]:
        weight, bias = pop(f"{source}/weight"), pop(f"{source}/bias")
        if weight.ndim < 2 or bias.shape != weight.shape[:1] or weight.shape[0] % len(targets):
            raise InputError(
                f"{path}: {source} has weight {list(weight.shape)} and bias {list(bias.shape)}; "
                f"they do not fit {len(targets)} maps"
            )
        for target, part, part_bias in zip(
            targets, weight.chunk(len(targets)), bias.chunk(len(targets)), strict=True
        ):
            yield f"{target}.weight", part.contiguous()
            if not target.endswith(".k_proj"):
                yield f"{target}.bias", part_bias.contiguous()
            elif part_bias.any():
                raise InputError(
                    f"{path}: {source}/bias is not zero on the keys; Whisper's key projection has "
                    "no bias"
                )

    yield from linear("encoder/conv1", "model.encoder.conv1")
    yield from linear("encoder/conv2", "model.encoder.conv2")
    yield "model.decoder.embed_tokens.weight", pop("decoder/embeddings/weight")
    if not config["tie_word_embeddings"]:
        yield "proj_out.weight", pop("decoder/projection/weight")
    for stack in ("encoder", "decoder"):
        yield f"model.{stack}.embed_positions.weight", pop(f"{stack}/position_encodings/encodings")
        yield from norm(f"{stack}/layer_norm", f"model.{stack}.layer_norm")
        for layer in range(config[f"{stack}_layers"]):
            source, target = f"{stack}/layer_{layer}", f"model.{stack}.layers.{layer}"
            own = f"{target}.self_attn"
            yield from norm(f"{source}/self_attention/layer_norm", f"{own}_layer_norm")
            yield from linear(
                f"{source}/self_attention/linear_0",
                f"{own}.q_proj",
                f"{own}.k_proj",
                f"{own}.v_proj",
            )
            yield from linear(f"{source}/self_attention/linear_1", f"{own}.out_proj")
            if stack == "decoder":
                cross = f"{target}.encoder_attn"
                yield from norm(f"{source}/attention/layer_norm", f"{cross}_layer_norm")
                yield from linear(f"{source}/attention/linear_0", f"{cross}.q_proj")
                yield from linear(
                    f"{source}/attention/linear_1", f"{cross}.k_proj", f"{cross}.v_proj"
                )
                yield from linear(f"{source}/attention/linear_2", f"{cross}.out_proj")
            yield from norm(f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")
            yield from linear(f"{source}/ffn/linear_0", f"{target}.fc1")
            yield from linear(f"{source}/ffn/linear_1", f"{target}.fc2")
