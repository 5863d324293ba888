"""What counts as damage, and settings that no model has: one line each, and no memory made of a
number.
"""

from __future__ import annotations

import errno
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from test_local import SHAPES
from test_readers import Makes
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from normgauge.anatomy import describe
from normgauge.capture.checkpoint import check_configuration
from normgauge.checkpoints.agreement import require_agreement
from normgauge.checkpoints.architectures import empty_model
from normgauge.checkpoints.configuration import parse_config
from normgauge.errors import LENGTH_LIMIT, InputError, is_damage, one_line, printable
from normgauge.tables import read_metadata, read_table, write_table
from normgauge.transport.arrays import read_arrays
from normgauge.transport.optimizers import read_state
from normgauge.yaml_files import read_yaml


class PanicException(BaseException):
    """As pyo3 raises it."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        zipfile.BadZipFile("x"),
        IsADirectoryError(errno.EISDIR, "x"),
        PanicException("x"),
        Exception("x"),
        KeyError("x"),
    ],
)
def test_damage_is_one_line_with_the_file(error):
    @one_line("a list")
    def read(path):
        raise error

    with pytest.raises(InputError, match=r"^a/b: cannot be read as a list \("):
        read("a/b")


@pytest.mark.parametrize(
    "error",
    [
        NameError("x"),
        ImportError("x"),
        KeyboardInterrupt(),
        SystemExit(1),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_what_no_file_explains_passes(error):
    @one_line("a list")
    def read(path):
        raise error

    with pytest.raises(type(error)):
        read("a/b")
    assert isinstance(error, OSError) or not is_damage(error)


def test_a_message_is_one_printable_line():
    assert printable("a\n\tb  c") == "a b c"
    assert printable(
        "caf\u00e9 \x1b[2J \udcff \u202e"
    ) == r"caf\u00e9 \x1b[2J \udcff \u202e".replace(r"\u00e9", "\u00e9")
    assert len(printable("x" * 10**6)) == LENGTH_LIMIT
    assert len(printable("\x1b" * 10**4)) == LENGTH_LIMIT
    assert str(InputError("\x1b")) == r"\x1b"


# Settings


def entry_of(family):
    image = family in ("vit", "dinov2")
    return {
        "modality": "image" if image else "text",
        "calibration": "random-noise" if image else "random-tokens",
    }


def check(name, **changes):
    keys = {**SHAPES[name], "architectures": [name], **changes}
    check_configuration(entry_of(keys["model_type"]), keys)


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_that_are_none_are_refused_by_name(name):
    """Each number of a config in turn becomes what no model has; the memory that it asks for is
    never made.
    """
    check(name)
    settings = CONFIG_MAPPING[SHAPES[name]["model_type"]].from_dict(dict(SHAPES[name])).to_dict()
    sizes = [
        key
        for key in SHAPES[name]
        if type(settings.get(key)) is int and not key.endswith("token_id")
    ]
    # it has a ratio instead
    sizes = [key for key in sizes if (name, key) != ("Dinov2Model", "intermediate_size")]
    for key in [*sizes, "num_labels"]:
        for value in (10**9, [], "0"):
            with pytest.raises(InputError) as caught:
                check(name, **{key: value})
            assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("GPT2LMHeadModel", {"architectures": 3}),
        ("BertForMaskedLM", {"torch_dtype": []}),
        ("ViTModel", {"image_size": [1]}),
        ("ViTModel", {"image_size": 8000, "patch_size": 1}),
        ("GPTNeoXForCausalLM", {"head_dim": 10**9}),
        ("GPTNeoXForCausalLM", {"rotary_pct": 1e8}),
        ("T5ForConditionalGeneration", {"num_heads": 10**6}),
        ("LlamaForCausalLM", {"head_dim": "0"}),
        ("Dinov2Model", {"hidden_size": 10**6, "image_size": 800}),
    ],
)
def test_settings_that_make_no_model(name, changes):
    with pytest.raises(InputError):
        check(name, **changes)


@pytest.mark.parametrize("stored", [{"class": []}, {"class": {}}, {"class": 3}, [], "x", None])
def test_malformed_sceptr_settings(stored):
    keys = {
        "model": {"token_embedder": stored, "self_attention_stack": {"class": [], "initargs": {}}}
    }
    with pytest.raises(InputError):
        check_configuration({"modality": "tokens", "calibration": "tcr"}, keys)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertForMaskedLM"])
def test_a_stray_size_of_heads_is_as_idle_in_the_anatomy_as_in_the_class(name):
    plain, stray = (
        parse_config({**SHAPES[name], "architectures": [name], **extra})
        for extra in ({}, {"head_dim": 1_000_000})
    )
    assert [tensor.shape for tensor in describe(stray).tensors] == [
        tensor.shape for tensor in describe(plain).tensors
    ]
    check(name, head_dim=1_000_000)


@pytest.mark.parametrize("name", SHAPES)
def test_anatomy_and_class_are_compared_tensor_by_tensor(name):
    config = parse_config({**SHAPES[name], "architectures": [name]})
    require_agreement(describe(config), empty_model(config, torch.float32))
    width = next(key for key in ("hidden_size", "d_model", "n_embd") if key in SHAPES[name])
    wider = parse_config({**SHAPES[name], "architectures": [name], width: 16})
    with pytest.raises(InputError, match=r"a key of the config changes one of them alone"):
        require_agreement(describe(wider), empty_model(config, torch.float32))
    with pytest.raises(InputError, match="not there"):
        model = empty_model(config, torch.float32)
        model.register_parameter("stray", torch.nn.Parameter(torch.ones(1)))
        require_agreement(describe(config), model)


def test_a_head_size_that_the_class_heeds_in_part_is_refused():
    """GPT-NeoX rotates by head_dim and splits its width without it."""
    with pytest.raises(InputError, match="a key of the config changes one of them alone"):
        check("GPTNeoXForCausalLM", head_dim=2)


# Files of other rooms


def write_npz(path):
    np.savez(path, a=np.arange(6.0), b=np.ones((2, 3), np.float32))


def write_state(path):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), path)


FILES = {
    "a.npz": (write_npz, read_arrays),
    "a.safetensors": (lambda path: save_file({"a": torch.arange(6.0)}, path), read_arrays),
    "a.pt": (write_state, read_state),
    "a.parquet": (
        lambda path: write_table(path, pa.table({"a": [1.5, 2.5], "b": ["x", "y"]}), {"k": "v"}),
        read_table,
    ),
    "b.parquet": (
        lambda path: write_table(path, pa.table({"a": [1.5, 2.5]}), {"k": "v"}),
        read_metadata,
    ),
    "a.yaml": (lambda path: path.write_text("a: {b: [1, 2.5, null], c: text}\n"), read_yaml),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused_or_read(tmp_path, name):
    write, read = FILES[name]
    path = tmp_path / name
    write(path)
    read(path)
    content, refused = path.read_bytes(), 0
    for position in range(0, len(content), max(1, len(content) // 80)):
        for changed in (
            content[:position],
            content[:position] + bytes([content[position] ^ 0x95]) + content[position + 1 :],
        ):
            path.write_bytes(changed)
            try:
                read(path)
            except InputError:
                refused += 1
    assert refused > 5
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError):
        read(path)


def test_yaml_nested_beyond_any_need(tmp_path):
    (tmp_path / "a.yaml").write_text("[" * 5000 + "]" * 5000)
    with pytest.raises(InputError, match="cannot be read as YAML"):
        read_yaml(tmp_path / "a.yaml")


def test_an_optimizer_file_makes_no_memory_of_a_number(tmp_path):
    torch.save({"state": {}, "param_groups": [], "a": Makes(1 << 33)}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="bytearray"):
        read_state(tmp_path / "a.pt")
