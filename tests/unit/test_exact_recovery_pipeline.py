"""From a checkpoint to the identifiability map: everything recovered that can be, the solver blind
to weights, the file reassembled.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from threadpoolctl import threadpool_limits
from transformers import GemmaConfig, T5Config

import planted_checkpoints
from normgauge.anatomy import describe
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.exact_recovery import certificate, second_stage, solve
from normgauge.exact_recovery.arithmetic import arithmetic
from normgauge.exact_recovery.assemble import assemble, assemble_all
from normgauge.exact_recovery.check_gauge import check_gauge
from normgauge.exact_recovery.closing import close_stragglers
from normgauge.exact_recovery.compare import (
    attack_rows,
    compare,
    straggler_rows,
    write_comparison,
)
from normgauge.exact_recovery.description import Description
from normgauge.exact_recovery.evidence import falsifier_rows, route_rows
from normgauge.exact_recovery.observe import observe, observe_columns
from normgauge.provenance import import_closure, sha256_file
from normgauge.render.exact_recovery.drawings import DRAWINGS
from normgauge.schemas.exact_recovery import tables
from normgauge.tables import read_metadata

ROWS = 600
LIBRARY = Path(solve.__file__).parents[2]


def recover(folder, config, dtype=torch.float32):
    checkpoint_folder = planted_checkpoints.write(folder / "checkpoint", config, dtype=dtype)
    checkpoint = open_checkpoint(checkpoint_folder)
    observe(checkpoint, folder / "observations", ROWS, seed=32)
    solve.write(
        folder / "recovered", *solve.solve_folder(folder / "observations", arithmetic("torch"))
    )
    return checkpoint


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    return recover(folder, planted_checkpoints.gpt2_config()), folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return recover(folder, planted_checkpoints.bert_config()), folder


def test_every_parameter_of_a_tied_gpt2_and_its_file(gpt2, tmp_path):
    checkpoint, folder = gpt2
    rows = compare(checkpoint, folder / "recovered")
    assert sum(row["recovered"] for row in rows) == sum(
        tensor.numel() for tensor in checkpoint.tensors.values()
    )
    assert {row["misses"] for row in rows} == {0}
    assert min(row["min_margin"] for row in rows) > 4
    original = folder / "checkpoint" / "model.safetensors"
    assemble(
        load_file(folder / "recovered" / "recovered.safetensors"),
        original,
        tmp_path / "again.safetensors",
    )
    assert sha256_file(tmp_path / "again.safetensors") == sha256_file(original)


def test_the_other_arithmetic_route_gives_the_same_bits(gpt2, tmp_path):
    _, folder = gpt2
    with threadpool_limits(1):
        solve.write(
            tmp_path / "scipy", *solve.solve_folder(folder / "observations", arithmetic("scipy"))
        )
    first, second = (
        load_file(place / "recovered.safetensors")
        for place in (folder / "recovered", tmp_path / "scipy")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_a_second_tied_table_positions_and_types_keep_their_gauge(bert):
    checkpoint, folder = bert
    rows = {row["tensor"]: row for row in compare(checkpoint, folder / "recovered")}
    open_ = {
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
    }
    for name, row in rows.items():
        assert row["misses"] == 0
        if name in open_:
            assert (row["determined"], row["gauge_dimension"]) == (0, 32)
            assert "constant" in row["reason"]
        else:
            assert row["recovered"] == row["values"]
    attacked = attack_rows(checkpoint, folder / "recovered")
    assert {row["rows"] for row in attacked} == {checkpoint.config.vocab_size}
    assert all(row["inside"] for row in attacked)


def test_half_precision_storage(tmp_path):
    checkpoint = recover(tmp_path, planted_checkpoints.gpt2_config(n_layer=1), torch.float16)
    rows = compare(checkpoint, tmp_path / "recovered")
    assert {row["dtype"] for row in rows} == {"float16"}
    assert sum(row["recovered"] for row in rows) + sum(row["flagged"] for row in rows) == sum(
        row["values"] for row in rows
    )
    assert {row["misses"] for row in rows} == {0}
    falsified = falsifier_rows(checkpoint, describe(checkpoint.config), tmp_path / "recovered")
    values, given, chance, true = (
        sum(row[name] for row in falsified)
        for name in ("values", "matches", "chance_matches", "true_matches")
    )
    assert true == values
    assert given <= chance + 6 * (chance + 1) ** 0.5  # this grid is coarse enough for coincidences
    assert all(row["inside"] for row in attack_rows(checkpoint, tmp_path / "recovered"))


def test_rows_fit_their_schemas(gpt2, tmp_path):
    checkpoint, folder = gpt2
    output = folder / "recovered"
    kinds = (
        "map",
        "parts",
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
    files = {kind: tmp_path / f"{kind}.parquet" for kind in kinds}
    write_comparison(checkpoint, {"model": "tiny", "revision": "seed32"}, output, files)
    everything = {
        f"recovery_{kind}": tables.read(path, f"recovery_{kind}") for kind, path in files.items()
    }
    assert all(read_metadata(path)["revision"] == "seed32" for path in files.values())
    assert {row["survivors"] for row in everything["recovery_certificates"]} == {1}
    assert everything["recovery_certificates"][0]["method"] == "sieve"
    assert sum(row["matches"] + row["claimed"] for row in everything["recovery_falsifier"]) == 0
    assert min(row["residual_ratio"] for row in everything["recovery_falsifier"]) > 1e11
    assert all(row["true_matches"] == row["values"] > 0 for row in everything["recovery_falsifier"])
    assert everything["recovery_null"][0]["p"] > 1e-3
    margins = [row["margin"] for row in everything["recovery_margins"]]
    assert margins[-1] == min(
        row["margin"] for row in everything["recovery_hardest"] if row["margin"] >= 4
    )
    assert len(margins) > 1
    assert all(
        row["gain"] == checkpoint.tensors[gain_of(row["module"])][row["input"]]
        for row in everything["recovery_hardest"]
    )
    # theorem 1: the outputs, and hardly a stored value; the place on the same line has all
    for row in everything["recovery_minimum_norm"]:
        assert max(row["distance"], row["place_distance"]) < 1e-14
        assert row["matches"] < 0.05 * row["values"]
        assert row["place_matches"] == row["values"]
        assert row["moved"] > 1e-3
    scored = [row for row in everything["recovery_map"] if row["stored_score"]]
    assert {row["population"] for row in scored} == {"behind a LayerNorm"}
    assert all(2**-31 < row["stored_score"] < 1e-3 for row in scored)
    assert all(row["stored_log10_null"] < -50 for row in scored)
    assert all(row["least_score"] <= row["score"] for row in scored)
    calls = everything["recovery_calls"]
    assert sum(row["wrong"] for row in calls if row["low"] >= 4) == 0
    assert all(row["wrong"] <= row["values"] for row in calls)
    attacked = everything["recovery_attack"]
    assert {row["right"] for row in attacked} <= {None, True}
    assert all((row["right"] is None) == (row["survivors"] != 1) for row in attacked)
    assert all(row["inside"] for row in attacked)
    assert len(attacked) == checkpoint.config.n_embd
    # every row of both tables, also those of tokens that the random sequences missed
    assert {row["rows"] for row in attacked} == {
        checkpoint.config.vocab_size + checkpoint.config.n_positions
    }


def gain_of(module):
    block = module.rpartition(".")[0].rpartition(".")[0]
    return (
        "transformer.ln_f.weight"
        if module == "lm_head"
        else f"{block}.ln_{1 if '.attn.' in module else 2}.weight"
    )


def test_two_routes_are_compared_value_by_value(gpt2, tmp_path):
    _, folder = gpt2
    first = folder / "recovered"
    values, claimed = (
        load_file(first / "recovered.safetensors"),
        load_file(first / "claimed.safetensors"),
    )
    name = "transformer.h.1.attn.c_attn.weight"
    values[name].view(torch.int32)[3, 5] ^= 1
    claimed[name][4, 6] = False
    save_file(values, tmp_path / "recovered.safetensors")
    save_file(claimed, tmp_path / "claimed.safetensors")
    (tmp_path / "report.json").write_bytes((first / "report.json").read_bytes())
    rows = {row["tensor"]: row for row in route_rows(first, tmp_path)}
    assert (rows[name]["both"], rows[name]["different"], rows[name]["one"]) == (
        rows[name]["values"] - 1,
        1,
        1,
    )
    del rows[name]
    assert {(row["different"], row["one"]) for row in rows.values()} == {(0, 0)}


def test_each_file_is_assembled_or_says_why_not(gpt2, tmp_path):
    _, folder = gpt2
    original, torch_file = (
        folder / "checkpoint" / "model.safetensors",
        tmp_path / "pytorch_model.bin",
    )
    torch_file.write_bytes(b"anything")
    whole, other = assemble_all(
        [original, torch_file],
        folder / "recovered" / "recovered.safetensors",
        tmp_path / "assembled",
    )
    assert (
        whole["assembled_sha256"]
        == whole["sha256"]
        == sha256_file(tmp_path / "assembled" / "model.safetensors")
    )
    assert other["assembled_sha256"] is None
    assert "not a safetensors file" in other["reason"]


def test_the_comparison_counts_a_planted_wrong_bit(gpt2, tmp_path):
    checkpoint, folder = gpt2
    for path in (folder / "recovered").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "recovered.safetensors")
    name = "transformer.h.0.mlp.c_fc.weight"
    tensors[name].view(torch.int32)[3, 5] ^= 1
    save_file(tensors, tmp_path / "recovered.safetensors")
    rows = {row["tensor"]: row for row in compare(checkpoint, tmp_path)}
    assert (rows[name]["misses"], rows[name]["recovered"]) == (1, rows[name]["values"] - 1)


AUDIT = """
import sys
opened = []
def note(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))

sys.addaudithook(note)
from normgauge.exact_recovery import certificate, second_stage, solve
solve.main(sys.argv[1:])
modules = [name for name in sys.modules if name.startswith("normgauge.checkpoints")]
print("\\n".join(["MODULES", *modules, "FILES", *opened]))
"""


def test_the_solver_process_neither_opens_nor_receives_weights(gpt2, tmp_path):
    _, folder = gpt2
    command = [
        sys.executable,
        "-c",
        AUDIT,
        str(folder / "observations"),
        str(tmp_path / "recovered"),
    ]
    environment = {"PYTHONPATH": str(LIBRARY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
    modules, files = printed.split("MODULES\n")[1].split("FILES\n")
    assert modules == ""
    assert any("observations" in name for name in files.splitlines())
    assert not [
        name
        for name in files.splitlines()
        if str(folder / "checkpoint") in name or name.endswith((".bin", ".pt", ".gguf"))
    ]
    first, second = (
        load_file(place / "recovered" / "recovered.safetensors") for place in (folder, tmp_path)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("module", ["solve", "second_stage"])
def test_the_solver_imports_no_reader_of_weights(module):
    closure = import_closure(Path(solve.__file__).with_name(f"{module}.py"))
    assert not [
        path
        for path in closure
        if path.parent.name == "checkpoints"
        or path.stem in ("observe", "closing", "compare", "assemble")
    ]
    assert [
        path
        for path in import_closure(Path(solve.__file__).with_name("observe.py"))
        if path.parent.name == "checkpoints"
    ]


def test_observations_hold_no_parameter(gpt2):
    checkpoint, folder = gpt2
    written = json.loads((folder / "observations" / "description.json").read_text())
    assert all(
        set(item) == {"name", "shape", "dtype", "alias_of", "used"} for item in written["tensors"]
    )
    stored = {
        tensor.numpy().astype(np.float64).tobytes()[:64] for tensor in checkpoint.tensors.values()
    }
    for path in (folder / "observations").glob("*.f64"):
        assert path.read_bytes()[:64] not in stored


def test_stragglers_close_with_fresh_observations(tmp_path):
    folder = planted_checkpoints.write(
        tmp_path / "checkpoint", planted_checkpoints.gpt2_config(n_layer=1)
    )
    tensors = load_file(folder / "model.safetensors")
    gains, weights = (
        tensors["transformer.h.0.ln_2.weight"],
        tensors["transformer.h.0.mlp.c_fc.weight"],
    )
    gains[7] = -2.6e-4
    weights[7] *= torch.logspace(-4.5, -5.5, 128)  # around and below the noise of a joint fit
    weights[3, 50] = 1e-22  # below the noise of any number of observations
    save_file(tensors, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    observe(checkpoint, tmp_path / "observations", ROWS, seed=32)
    solution, output = tmp_path / "solution", tmp_path / "closed"
    solve.write(solution, *solve.solve_folder(tmp_path / "observations", arithmetic("torch")))
    before = compare(checkpoint, solution)
    assert sum(row["flagged"] for row in before) > 0
    assert sum(row["misses"] for row in before) == 0
    places = solution, output
    assert close_stragglers(checkpoint, *places, rows=4096, seed=100) > 0
    after, looks = compare(checkpoint, output), straggler_rows(output)
    assert sum(row["misses"] for row in after) == 0
    assert (
        sum(row["flagged"] for row in after) == sum(not look["within_reach"] for look in looks) > 0
    )
    assert not any(look["open"] for look in looks)
    drawn = [look for look in looks if look["chunks"]]
    assert {look["outputs"] for look in drawn} == {"rounded-once"}
    assert (
        np.median(
            [look["margin"] / look["float64_margin"] for look in drawn if look["float64_margin"]]
        )
        > 1.5
    )

    plain = tmp_path / "plain"
    published = second_stage.Protocol("float64", 3)
    assert (
        0
        < close_stragglers(checkpoint, solution, plain, rows=4096, seed=100, protocol=published)
        <= 3
    )
    rows, looks = compare(checkpoint, plain), straggler_rows(plain)
    assert sum(row["misses"] for row in rows) == 0
    assert {look["outputs"] for look in looks if look["chunks"]} == {"float64"}
    assert all(look["margin"] == look["float64_margin"] for look in looks if look["chunks"])


def test_a_column_with_several_places_is_undetermined_and_so_are_its_like(gpt2, monkeypatch):
    _, folder = gpt2
    honest, tried = certificate.certify, []

    def ambiguous(line, values, *rest):
        found = honest(line, values, *rest)
        tried.append(len(found.survivors))
        several = np.repeat(found.survivors, 2) if len(tried) in (1, 3) else found.survivors
        return dataclasses.replace(found, survivors=several)

    monkeypatch.setattr(certificate, "certify", ambiguous)
    description = Description.read(folder / "observations")
    item = next(item for item in description.maps if item.module == "transformer.h.0.attn.c_attn")
    solver = solve.Solver(description, folder / "observations", arithmetic("torch"))
    solver.solve_norm(description.norm(item.norm))
    solver.solve_maps([item])
    outcome = solver.results.outcomes[item.weight]
    assert len(tried) == item.outputs.width  # one of the sample was not single: all are tried
    assert np.flatnonzero(np.isnan(outcome.values).all(axis=0)).tolist() == [0, 2]
    assert np.isfinite(outcome.values).sum() == (item.outputs.width - 2) * item.inputs.width
    assert "several places" in outcome.row["reason"]


def test_t5_looks_its_table_up_twice_and_gemma_scales_what_it_looks_up(tmp_path):
    small = {
        "vocab_size": 211,
        "num_heads": 2,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 1,
        "decoder_start_token_id": 0,
    }
    checkpoint = recover(tmp_path / "t5", T5Config(architectures=["T5Model"], **small))
    rows = {row["tensor"]: row for row in compare(checkpoint, tmp_path / "t5" / "recovered")}
    assert sum(row["misses"] for row in rows.values()) == 0
    assert 0 < rows["shared.weight"]["recovered"] == rows["shared.weight"]["determined"]
    shape = {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    gemma = GemmaConfig(
        architectures=["GemmaModel"],
        intermediate_size=32,
        vocab_size=101,
        max_position_embeddings=64,
        **shape,
    )
    observe(
        open_checkpoint(planted_checkpoints.write(tmp_path / "gemma", gemma)),
        tmp_path / "observations",
        50,
        seed=32,
    )
    description = Description.read(tmp_path / "observations")
    assert (description.embedding, description.tables) == (None, ())


@pytest.mark.parametrize(
    "name", ["exact_recovery_margins", "exact_recovery_columns", "exact_recovery_null"]
)
def test_figures_of_models_of_which_nothing_is_decided(name):
    figure = DRAWINGS[name]
    assert figure([]).axes
    undecided = {
        "model": "tiny",
        "revision": "seed1",
        "module": "m",
        "column": 0,
        "method": "joint fit",
        "rows": 8,
        "margin": 0.0,
    }
    if name != "exact_recovery_null":
        assert figure([{**undecided, "gain": 1.0, "weight": 1.0}]).axes


def test_fresh_outputs_are_the_modules_own_rounded_once(gpt2, tmp_path):
    checkpoint, _ = gpt2
    model, columns = (
        build_model(checkpoint, "float64"),
        {"transformer.h.1.mlp.c_proj": [3, 30], "lm_head": [100]},
    )
    observe_columns(
        model, checkpoint.config, tmp_path / "fresh", 64, 7, columns, ("rounded-once", "float64")
    )
    for name, chosen in columns.items():
        module = model.get_submodule(name)
        inputs = torch.from_numpy(
            np.fromfile(tmp_path / "fresh" / f"{name}.inputs.f64").reshape(64, -1)
        )
        once, plain = (
            np.fromfile(tmp_path / "fresh" / f"{name}.{kind}.f64").reshape(64, -1)
            for kind in ("rounded-once", "float64")
        )
        own, size = module(inputs)[:, chosen].numpy(), module(inputs.abs()).abs().max().item()
        assert 0 < np.abs(once - own).max() < 1e-14 * size
        # another number of rows may be summed otherwise
        np.testing.assert_allclose(plain, own, atol=1e-14 * size)
        exact = module.weight.double().numpy()[chosen if name == "lm_head" else slice(None)]
        exact = exact.T if name == "lm_head" else exact[:, chosen]
        bias = 0 if module.bias is None else module.bias.detach().numpy()[chosen]
        wrong = [
            np.abs(inputs.numpy().astype(np.longdouble) @ exact + bias - outputs).mean()
            for outputs in (once, plain)
        ]
        assert wrong[0] < wrong[1]


def test_missing_and_torn_arrays_are_refused(gpt2, tmp_path):
    _, folder = gpt2
    description = Description.read(folder / "observations")
    array = description.maps[0].outputs
    with pytest.raises(InputError, match="found 0 bytes"):
        array.read(tmp_path)
    (tmp_path / f"{array.name}.f64").write_bytes(
        (folder / "observations" / f"{array.name}.f64").read_bytes()[:-5]
    )
    with pytest.raises(InputError, match="whole rows"):
        array.read(tmp_path)


def test_a_model_with_undetermined_tensors_cannot_be_assembled(bert, tmp_path):
    _, folder = bert
    with pytest.raises(InputError, match="undetermined"):
        assemble(
            load_file(folder / "recovered" / "recovered.safetensors"),
            folder / "checkpoint" / "model.safetensors",
            tmp_path / "x",
        )
    assert not (tmp_path / "x").exists()


def test_check_gauge_holds_and_sees_a_wrong_gain(gpt2):
    checkpoint, _ = gpt2
    anatomy, model = describe(checkpoint.config), build_model(checkpoint, "float64")
    assert max(row["violation"] for row in check_gauge(anatomy, model, checkpoint.tensors)) < 1e-15
    name = "transformer.h.0.ln_1"
    wrong = {
        **checkpoint.tensors,
        f"{name}.weight": checkpoint.tensors[f"{name}.weight"] * torch.linspace(1, 1.1, 32),
    }
    rows = {row["norm"]: row["violation"] for row in check_gauge(anatomy, model, wrong)}
    assert rows.pop(name) > 1e-4
    assert max(rows.values()) < 1e-15
