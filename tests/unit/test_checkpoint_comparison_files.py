"""Folders: what is refused, by one line that names it; probes in a vocabulary; the inventory and
the files of one comparison.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from normgauge.anatomy import describe
from normgauge.checkpoint_comparison.inventory import inventory_rows
from normgauge.checkpoint_comparison.pairing import open_pair
from normgauge.checkpoint_comparison.probes import find_probes, read_probes
from normgauge.checkpoint_comparison.study import compare_folders
from normgauge.checkpoints.configuration import parse_config
from normgauge.errors import InputError
from normgauge.schemas.checkpoint_comparison import tables
from unit.comparison_pairs import FAMILIES, changed, checkpoint, nearby, pair_of

ROOT = Path(__file__).parents[2]
TOKENS = [*"0123456789abcdef?"]


def write_folder(folder: Path, source, **changes) -> Path:
    """The checkpoint as a folder in float32 with a word-level tokenizer of seventeen tokens."""
    folder.mkdir(parents=True)
    config = {**source.config.to_dict(), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: value.float().contiguous() for name, value in source.tensors.items()},
        folder / "model.safetensors",
    )
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="?")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source = checkpoint("gemma3", 1)
    return write_folder(tmp_path / "a", source), write_folder(tmp_path / "b", nearby(source, 2))


def rewrite(folder: Path, change) -> None:
    """Change the raw header (a dict) of the folder's file, and the payload that follows it."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    payload = change(header, raw[8 + size :])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def dtype(name: str, size: int):
    def change(header, payload):
        first = next(key for key in header if key != "__metadata__")
        header.clear()
        header[first] = {"dtype": name, "shape": [size], "data_offsets": [0, size]}
        return bytes(size)

    return change


def overlap(header, payload):
    names = sorted(
        (key for key in header if key != "__metadata__"),
        key=lambda key: header[key]["data_offsets"],
    )
    start, end = header[names[1]]["data_offsets"]
    header[names[1]]["data_offsets"] = [start - 4, end - 4]
    return payload


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda header, payload: payload[:-10], ["truncated"]),
        (overlap, ["overlaps"]),
        (dtype("F8_E4M3", 8), ["F8_E4M3", "unquantised"]),
        (dtype("I8", 8), ["I8", "floating-point"]),
    ],
    ids=["truncated", "overlapping", "fp8", "int8"],
)
def test_a_malformed_file_is_refused_by_name(folders, change, words):
    rewrite(folders[1], change)
    with pytest.raises(InputError, match=r"model\.safetensors") as caught:
        open_pair(folders)
    assert all(word in str(caught.value) for word in words)


def changed_folder(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_different_configurations_are_refused_by_key(folders):
    changed_folder(folders[1], rms_norm_eps=0.5)
    with pytest.raises(InputError, match=r"rms_norm_eps is 1e-06 in A and 0.5 in B"):
        open_pair(folders)


STAMPS = {
    "a tool's stamps": {
        "unsloth_version": "2026.1",
        "auto_map": {"AutoModel": "x.Y"},
        "use_flash_attention_2": True,
    },
    "training": {
        "initializer_range": 0.5,
        "gradient_checkpointing": True,
        "attention_dropout": 0.3,
    },
    "the longest sequence": {"max_position_embeddings": 4096},
}


@pytest.mark.parametrize("name", STAMPS)
def test_keys_that_do_not_change_the_function_are_noted(folders, tmp_path, capsys, name):
    before = inventory_rows(*[open_pair(folders)] * 2)
    changed_folder(folders[1], **STAMPS[name])
    pair = open_pair(folders)
    assert inventory_rows(pair, pair) == before
    silent = {"attention_dropout"}
    assert all(
        any(f"config.json: {key} is " in note for note in pair.noted)
        for key in STAMPS[name].keys() - silent
    )
    assert all(note in capsys.readouterr().err for note in pair.noted[:1])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("query_pre_attn_scalar", 100),
            ("sliding_window", 3),
            ("hidden_activation", "relu"),
            ("attn_logit_softcapping", 20.0),
        ),
        ("rope_parameters", {"full_attention": {"rope_type": "default", "rope_theta": 5.0}}),
    ],
)
def test_keys_that_change_the_function_are_refused(folders, key, value):
    changed_folder(folders[1], **{key: value})
    with pytest.raises(InputError, match=f"config.json: {key} is .* in A and .* in B"):
        open_pair(folders)


def test_the_longest_sequence_counts_where_positions_depend_on_it(tmp_path):
    source = checkpoint("llama", 1)
    pair = write_folder(tmp_path / "a", source), write_folder(tmp_path / "b", nearby(source, 2))
    scaled = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    for folder, length in zip(pair, (32, 64), strict=True):
        changed_folder(folder, **scaled, max_position_embeddings=length)
    with pytest.raises(InputError, match="max_position_embeddings is 32 in A and 64 in B"):
        open_pair(pair)


def test_a_readout_of_its_own_on_one_side_is_compared(tmp_path, capsys):
    """A stores one table, B says the same and stores another readout: what moved is the readout."""
    source = checkpoint("llama", 1, tie_word_embeddings=True)
    table = source.tensors["model.embed_tokens.weight"]
    first, second = write_folder(tmp_path / "a", source), write_folder(tmp_path / "b", source)
    tensors = {name: value.float().contiguous() for name, value in source.tensors.items()}
    for case, readout in (("another readout", table + 0.5), ("the same", table)):
        save_file(
            {**tensors, "lm_head.weight": readout.float().contiguous()},
            second / "model.safetensors",
        )
        for folders in ((first, second), (second, first)):
            pair = open_pair(folders)
            changed = {
                row["tensor"]
                for row in inventory_rows(pair, pair)
                if row["status"] == "tensor" and row["changed"]
            }
            assert changed == ({"lm_head.weight"} if case == "another readout" else set())
            assert pair.anatomy.tied == (case == "the same")
            assert not pair.unmatched
    assert "both are opened untied" in capsys.readouterr().err
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    save_file(
        {**tensors, "lm_head.weight": (table + 0.5).float().contiguous()},
        second / "model.safetensors",
    )
    pair = open_pair((first, second))  # its config says so as well
    assert {
        row["tensor"]
        for row in inventory_rows(pair, pair)
        if row["status"] == "tensor" and row["changed"]
    } == {"lm_head.weight"}


def test_a_tensor_that_neither_class_uses_is_compared_on_both_sides(folders):
    for folder, scale in zip(folders, (1.0, 3.0), strict=True):
        path = folder / "model.safetensors"
        save_file(
            {
                **load_file(path),
                "probe.weight": scale * torch.ones(4, 12),
                "own.weight": torch.ones(int(scale)),
            },
            path,
        )
    pair = open_pair(folders)
    rows = {row["tensor"]: row for row in inventory_rows(pair, pair)}
    assert (rows["probe.weight"]["status"], rows["probe.weight"]["relative"]) == (
        "not used",
        pytest.approx(1.0),
    )
    assert rows["probe.weight"]["invariant_under"] == []
    assert pair.unmatched.keys() == {"own.weight"}  # of another shape in each
    plain = sum(row["values"] for row in rows.values() if row["status"] == "tensor")
    assert rows["all tensors"]["values"] == plain


def test_different_vocabularies_are_refused(folders):
    vocabulary = {token: number for number, token in enumerate(reversed(TOKENS))}
    Tokenizer(models.WordLevel(vocabulary, unk_token="?")).save(str(folders[1] / "tokenizer.json"))
    with pytest.raises(InputError, match="token '0' has the id 0 in A and 16 in B"):
        open_pair(folders)
    (folders[1] / "tokenizer.json").unlink()
    (folders[1] / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", "##a", *TOKENS]))
    with pytest.raises(InputError, match="token '##a' has the id none in A and 3 in B"):
        open_pair(folders)


def test_a_tokenizer_that_cuts_texts_differently_has_the_same_vocabulary(folders):
    tokenizer = Tokenizer.from_file(str(folders[1] / "tokenizer.json"))
    tokenizer.enable_truncation(64)
    tokenizer.save(str(folders[1] / "tokenizer.json"))
    assert open_pair(folders).a.label == "A"


def test_another_family_is_named_as_such(folders, tmp_path):
    other = write_folder(tmp_path / "c", checkpoint("bert", 1))
    with pytest.raises(InputError, match=r"model_type is 'gemma3_text' in A and 'bert' in B"):
        open_pair((folders[0], other))


def test_identical_files_are_said_to_be_identical(folders):
    with pytest.raises(InputError, match="A and B are identical"):
        open_pair((folders[0], folders[0]))


def saved_without(folder: Path, name: str, **extra: torch.Tensor) -> None:
    source = checkpoint("gemma3", 1)
    tensors = {
        key: value.float().contiguous() for key, value in source.tensors.items() if key != name
    }
    save_file({**tensors, **extra}, folder / "model.safetensors")


def test_a_missing_tensor_is_named_with_its_side(folders):
    saved_without(folders[1], "model.layers.1.mlp.up_proj.weight")
    with pytest.raises(
        InputError, match=r"of B: tensor model.layers.1.mlp.up_proj.weight .* is missing"
    ):
        open_pair(folders)


def test_a_tensor_of_another_shape_is_named(folders):
    saved_without(folders[1], "model.norm.weight", **{"model.norm.weight": torch.ones(5)})
    with pytest.raises(InputError, match=r"of B: tensor model.norm.weight has shape \[5\]"):
        open_pair(folders)


def test_nan_is_named(folders):
    value = torch.ones(12)
    value[3] = float("nan")
    saved_without(folders[0], "model.norm.weight", **{"model.norm.weight": value})
    with pytest.raises(
        InputError, match=r"of A: tensor model.norm.weight holds values that are NaN"
    ):
        open_pair(folders)


def test_heads_that_one_side_alone_has_are_listed_and_left_out(tmp_path):
    source = checkpoint("bert", 1)
    first = write_folder(tmp_path / "a", source)
    second = write_folder(
        tmp_path / "b", nearby(source, 2), architectures=["BertForTokenClassification"]
    )
    tensors = {
        name: value.float().contiguous()
        for name, value in source.tensors.items()
        if name.startswith("bert.")
    }
    save_file(
        {**tensors, "classifier.weight": torch.ones(2, 12), "classifier.bias": torch.ones(2)},
        second / "model.safetensors",
    )
    pair = open_pair((first, second))
    assert pair.anatomy.architecture == "BertModel"
    # neither stores one
    assert "pooler.dense.weight" not in {tensor.name for tensor in pair.tensors()}
    pooler = {
        "bert.pooler.dense.weight": torch.ones(12, 12),
        "bert.pooler.dense.bias": torch.ones(12),
    }
    for folder in (first, second):
        stored = (
            tensors
            if folder == second
            else {name: value.float().contiguous() for name, value in source.tensors.items()}
        )
        save_file(
            {**stored, **pooler, "classifier.weight": torch.ones(2, 12)}
            if folder == second
            else {**stored, **pooler},
            folder / "model.safetensors",
        )
    pair = open_pair((first, second))
    assert pair.anatomy.architecture == "BertModel"
    assert pair.unmatched["classifier.weight"] == "B"
    assert "A" in pair.unmatched.values()
    statuses = {row["tensor"]: row["status"] for row in inventory_rows(pair, pair)}
    assert statuses["classifier.weight"] == "B only"


def test_probes_are_looked_up_and_what_is_missing_is_reported(folders):
    sets = read_probes(ROOT / "config" / "probes.yaml")
    found, dropped = find_probes(sets, folders[0], open_pair(folders), "letters")
    assert [probe.name for probe in found[:2]] == ["letters", "digits"]
    letters = found[0]
    assert (letters.tokens, letters.ids, letters.ordered) == (
        tuple("abcdef"),
        tuple(range(10, 16)),
        False,
    )
    assert dropped["letters"] == tuple("ghij")
    assert dropped["digits"] == ()
    assert dropped["nouns"] == tuple(sets["nouns"]["tokens"])
    with pytest.raises(InputError, match="probe set colours"):
        find_probes(sets, folders[0], open_pair(folders), "colours")


def test_another_version_of_the_probe_file_is_refused(tmp_path):
    (tmp_path / "probes.yaml").write_text("version: 2\nsets: {}\n")
    with pytest.raises(InputError, match="version is 2, expected 1"):
        read_probes(tmp_path / "probes.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: [", "cannot be read as YAML"),
        ("version: 1", "sets: expected sets"),
        ("version: 1\nsets: {digits: [a, b]}", "sets.digits: expected a list under tokens"),
        ("version: 1\nsets: {digits: {tokens: abcd}}", "sets.digits: expected a list under tokens"),
        (
            "version: 1\nsets: {digits: {tokens: [0, 1, 2, 3]}}",
            "sets.digits.tokens: 0 is no text; put it in quotes",
        ),
        (
            "version: 1\nsets: {digits: {tokens: [a], control: [b]}}",
            r"sets.digits.control: \['b'\] is no set",
        ),
        ("version: 1\nsets: {digits: {tokens: [a], ordered: 3}}", "sets.digits.ordered: 3"),
        ("version: 1\nsets: {digits: {tokens: [a], contol: b}}", "sets.digits.contol: unknown key"),
    ],
)
def test_a_malformed_probe_file_is_refused_by_key(tmp_path, text, words):
    (tmp_path / "probes.yaml").write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_probes(tmp_path / "probes.yaml")
    assert str(caught.value).startswith("probes.yaml" if "YAML" not in words else str(tmp_path))


def test_tokens_without_a_vector_are_dropped_and_reported(tmp_path):
    """A row of zeros, as of a padding token, and ids beyond the rows of the table."""
    source = checkpoint("gemma3", 1, vocab_size=12)
    table = source.tensors["model.embed_tokens.weight"].clone()
    table[3] = 0
    emptied = changed(nearby(source, 2), {"model.embed_tokens.weight": table})
    folders = write_folder(tmp_path / "a", source), write_folder(tmp_path / "b", emptied)
    sets = {
        "digits": {"tokens": list("0123456789"), "ordered": True},
        "letters": {"tokens": list("abcdef")},
    }
    found, dropped = find_probes(sets, folders[0], open_pair(folders), "digits")
    assert [probe.tokens for probe in found] == [tuple("012456789")]
    assert not found[0].ordered
    assert dropped == {"digits": ("3",), "letters": tuple("cdef")}


def test_a_control_or_query_that_is_no_set_is_refused(tmp_path):
    for key in ("control", "query"):
        (tmp_path / "probes.yaml").write_text(
            f"version: 1\nsets: {{digits: {{tokens: ['1'], {key}: letters}}}}\n"
        )
        with pytest.raises(InputError, match=f"sets.digits.{key}: letters is no set of the file"):
            read_probes(tmp_path / "probes.yaml")


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_and_totals_of_the_inventory(family):
    pair = pair_of(family)
    rows = inventory_rows(pair, pair)
    tensors = [row for row in rows if row["status"] == "tensor"]
    total = next(row for row in rows if row["tensor"] == "all tensors")
    assert sum(row["squared_share"] for row in tensors) == pytest.approx(1)
    assert sum(row["values"] for row in tensors) == total["values"]
    assert sum(row["difference"] ** 2 for row in tensors) == pytest.approx(total["difference"] ** 2)
    parts = [
        row for row in rows if row["status"] == "total" and row["part"] not in ("all", "blocks")
    ]
    assert sum(row["squared_share"] for row in parts) == pytest.approx(1)
    assert {row["part"] for row in tensors if row["block"]} == {"attention", "mlp", "norm"}


def test_one_comparison_writes_four_tables_and_a_decision(folders, tmp_path):
    names = ("inventory", "alignment", "kernels", "nulls")
    outputs = {name: tmp_path / f"{name}.parquet" for name in names} | {
        "decision": tmp_path / "decision.json"
    }
    contents = []
    for _ in range(2):
        compare_folders(
            folders, outputs, (None, None), ROOT / "config" / "probes.yaml", "digits", 19, 0, {}
        )
        contents.append({name: path.read_bytes() for name, path in outputs.items()})
    assert contents[0] == contents[1]
    rows = {name: tables.read(outputs[name], f"checkpoint_comparison_{name}") for name in names}
    assert all(rows.values())
    assert {row["statistic"] for row in rows["nulls"] if row["confirmatory"]} == {
        *(
            "ov_energy",
            "qk_energy",
            "mlp_unit_terms",
            "table_row_energy",
            "ov_copy",
            "ov_copy_all_heads",
        )
    }
    assert {row["null"] for row in rows["nulls"] if not row["confirmatory"]} == {
        *("row signs", "Haar rotations", "matched random tokens", "random subspaces", "head signs")
    }
    decision = json.loads(outputs["decision"].read_text())
    assert decision["dropped_tokens"]["letters"] == list("ghij")
    assert "digits" not in decision["dropped_tokens"]


def test_the_scale_shape_is_that_of_the_study():
    """237 stored tensors, the tied readout among them, and 435,870,336 values;
    checkpoint_comparison_scale.py of benchmarks/ takes it.
    """
    anatomy = describe(
        parse_config(json.loads((ROOT / "config/shapes/gemma3-270m.json").read_text()))
    )
    assert len(anatomy.tensors) == 13 * 18 + 3 == 237
    assert sum(math.prod(tensor.shape) for tensor in anatomy.tensors) == 435_870_336
