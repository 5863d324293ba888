"""Recovery part by part gives the tables of the whole model, with the scratch space of one part."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPTNeoXConfig, T5Config

import planted_checkpoints
from normgauge.anatomy import describe
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.exact_recovery import by_block, solve
from normgauge.exact_recovery.by_block import recover_by_block
from normgauge.exact_recovery.compare import compare, write_comparison
from normgauge.exact_recovery.observe import observe
from normgauge.exact_recovery.parts import parts_of
from normgauge.exact_recovery.relay import Incoming
from normgauge.schemas.exact_recovery import tables

ROWS = 400
KINDS = (
    "map",
    "certificates",
    "null",
    "stragglers",
    "falsifier",
    "margins",
    "hardest",
    "attack",
    "minimum_norm",
    "calls",
)
COSTS = {"seconds"}


def t5_config() -> T5Config:
    shape = {"num_heads": 2, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2}
    return T5Config(
        architectures=["T5ForConditionalGeneration"],
        vocab_size=211,
        decoder_start_token_id=0,
        **shape,
    )


def neox_config() -> GPTNeoXConfig:
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    return GPTNeoXConfig(
        architectures=["GPTNeoXForCausalLM"],
        vocab_size=901,
        intermediate_size=32,
        max_position_embeddings=64,
        **shape,
    )


CONFIGS = {
    "pre-norm": planted_checkpoints.gpt2_config,
    "post-norm": planted_checkpoints.bert_config,
    "two stacks": t5_config,
}


def solved(folder):
    """A solver's folder, by a solver in this process."""
    output = folder.with_name(f"{folder.name}.solved")
    solve.main([str(folder), str(output)])
    return output


def rows_of(checkpoint, folder, output):
    output.mkdir()
    files = {kind: output / f"{kind}.parquet" for kind in (*KINDS, "parts")}
    write_comparison(checkpoint, {"model": "tiny", "revision": "seed0"}, folder, files)
    return {kind: tables.read(path, f"recovery_{kind}") for kind, path in files.items()}


def same(first, second):
    """Rows that are equal, what they took aside; NaN equals NaN."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - COSTS:
            assert one[key] == other[key] or (one[key] != one[key] and other[key] != other[key]), (
                key
            )


@pytest.mark.parametrize("kind", CONFIGS)
def test_tables_by_part_are_those_of_the_whole(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(
        by_block,
        "solve_apart",
        lambda folder, output, route: solve.main([str(folder), str(output)]),
    )
    checkpoint = open_checkpoint(
        planted_checkpoints.write(tmp_path / "checkpoint", CONFIGS[kind]())
    )
    observe(checkpoint, tmp_path / "whole", ROWS, seed=5)
    whole = rows_of(checkpoint, solved(tmp_path / "whole"), tmp_path / "first")
    recover_by_block(checkpoint, tmp_path / "parts", ROWS, seed=5)
    parts = rows_of(checkpoint, tmp_path / "parts", tmp_path / "second")
    for name in KINDS:
        same(whole[name], parts[name])
    values = [
        load_file(tmp_path / name / "recovered.safetensors") for name in ("whole.solved", "parts")
    ]
    assert values[0].keys() == values[1].keys()
    for name, tensor in values[0].items():
        np.testing.assert_array_equal(tensor.view(torch.int32), values[1][name].view(torch.int32))
    names = [part.name for part in parts_of(describe(checkpoint.config))]
    assert [row["part"] for row in parts["parts"]] == names
    assert [row["part"] for row in whole["parts"]] == ["whole"]
    for key in ("values", "recovered", "misses"):
        assert sum(row[key] for row in parts["parts"]) == whole["parts"][0][key]


def test_one_part_is_on_the_disk_at_a_time_and_an_untied_table_is_read_by_every_token(
    tmp_path, monkeypatch
):
    on_disk = []

    def spied(folder, output, route):
        scratch = folder.parent
        on_disk.append(
            {path.name for path in folder.glob("*.f64")} | {path.name for path in scratch.iterdir()}
        )
        solve.main([str(folder), str(output), "--arithmetic", route])

    monkeypatch.setattr(by_block, "solve_apart", spied)
    checkpoint = open_checkpoint(planted_checkpoints.write(tmp_path / "checkpoint", neox_config()))
    recover_by_block(checkpoint, tmp_path / "solution", ROWS, seed=5)
    assert [len({name for name in names if name.startswith("relay.")}) for names in on_disk] == [
        1,
        2,
        1,
    ]
    blocks = [{name for name in names if "gpt_neox.layers" in name} for names in on_disk]
    assert [len({name.split(".")[2] for name in names}) for names in blocks] == [1, 1, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "solution"}
    rows = {row["tensor"]: row for row in compare(checkpoint, tmp_path / "solution")}
    table = rows["gpt_neox.embed_in.weight"]
    assert table["recovered"] == table["values"] > ROWS * 16
    assert {row["misses"] for row in rows.values()} == {0}


def test_a_relay_of_another_batch_is_no_relay(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(planted_checkpoints.write(tmp_path / "checkpoint", neox_config()))
    rows = 2048  # two batches of one shape
    first, second, _ = parts_of(describe(checkpoint.config))
    observe(checkpoint, tmp_path / "first", rows, 5, first, None, tmp_path / "relay")
    name = "gpt_neox.layers.1.attention.query_key_value.outputs.f64"
    arrays, own = [], Incoming._outputs
    for fault in (False, True):
        if fault:
            monkeypatch.setattr(Incoming, "_outputs", lambda self, batch: own(self, 1))
        folder = tmp_path / f"second-{fault}"
        observe(checkpoint, folder, rows, 5, second, tmp_path / "relay", tmp_path / "after")
        arrays.append((folder / name).read_bytes())
    observe(checkpoint, tmp_path / "whole", rows, 5)
    assert arrays[0] == (tmp_path / "whole" / name).read_bytes()
    assert arrays[1] != arrays[0]


def test_another_number_of_parts_is_refused(tmp_path):
    checkpoint = open_checkpoint(
        planted_checkpoints.write(tmp_path / "checkpoint", planted_checkpoints.gpt2_config())
    )
    places = tmp_path / "observations", None, tmp_path / "relay"
    with pytest.raises(InputError, match="4 parts were configured, the model has 3"):
        by_block.observe_numbered(checkpoint, 1, 4, places, ROWS, 5)
    assert not (tmp_path / "observations").exists()
