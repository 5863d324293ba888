"""The experiments around the fingerprint on planted moments and tiny checkpoints: each law, and
that breaking it shows.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Bos, Settings
from normgauge.capture.checkpoint import describe_checkpoint
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.dead_directions import budgets, precision
from normgauge.dead_directions.applicability import applicability_rows
from normgauge.dead_directions.calibrations import calibration_rows, compared, standard_errors
from normgauge.dead_directions.constrained import adapter_rows, decoder_rows
from normgauge.dead_directions.estimators import STREAMS, estimator_rows, observed
from normgauge.dead_directions.norm_zoo import NORMS, _row, norm_zoo_rows
from normgauge.dead_directions.placements import placement_rows
from normgauge.dead_directions.rank_allocation import Removal, allocation_rows, ranks
from normgauge.dead_directions.subject import Subject
from normgauge.dead_directions.trajectory import trajectory_rows
from normgauge.errors import InputError
from normgauge.fingerprint.directions import (
    directions_of_norm,
    read_directions,
    write_directions,
)
from normgauge.moments import Accumulator, GroupedAccumulator, Workspace
from normgauge.schemas.dead_directions import tables
from planted_checkpoints import gpt2_config, write

D = 16
ENTRY = {"source": {"path": "x"}, "modality": "tokens", "calibration": "random-tokens"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """(subject, calibration) of a tiny GPT-2; every sequence begins with token 0."""
    root = tmp_path_factory.mktemp("planted")
    folder = write(root / "checkpoint", gpt2_config(n_embd=D, vocab_size=211))
    manifest = root / "checkpoint.json"
    describe_checkpoint("tiny", "local", ENTRY, folder, manifest)
    paths = {}
    for seed in (0, 1):
        paths[seed] = root / f"calibration{seed}.parquet"
        prepare(
            ENTRY,
            folder,
            None,
            paths[seed],
            config=open_checkpoint(folder).config,
            settings=Settings(32, 12, seed, Bos.ALWAYS),
        )
    return Subject.read(folder, manifest, None), paths


def checked(kind, rows, tmp_path):
    tables.write(tmp_path / f"{kind}.parquet", kind, rows, {})
    return tables.read(tmp_path / f"{kind}.parquet", kind)


def grouped_moments(x, groups=4):
    accumulator = GroupedAccumulator("cov64", x.shape[1], Workspace())
    for number, chunk in enumerate(x.chunk(groups)):
        accumulator.update(chunk, number)
    return accumulator.moments()


def site_of(x):
    moments = grouped_moments(x)
    row = {
        "null_dimension": 0,
        "sigma_active_min": float(moments.spectrum().values[0]),
        "forward_floor": 1e-9,
        "accumulator_floor": 1e-9,
    }
    return moments, row, moments.spectrum().bottom(1)[:, 0]


# ------------------------------------------------------------------------ calibrations


def test_a_direction_that_is_dead_on_one_input_alone_has_an_excess():
    generator = torch.Generator().manual_seed(0)
    first, second = (
        torch.randn(4000, D, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    first[:, 3] *= 0.01
    second[:, 5] *= 0.1
    a, b = site_of(first), site_of(second)
    found = compared(a, b)
    assert found.excess == pytest.approx(100, rel=0.1)
    assert found.lift == pytest.approx(100, rel=0.1)
    assert found.cosine < 0.1
    assert compared(a, a).excess == pytest.approx(1, abs=1e-9)
    errors = standard_errors(a, b, found)
    assert all(0 < error < 0.2 * 100 for error in errors)


@pytest.mark.parametrize("seed", range(5))
def test_the_excess_is_at_least_one(seed):
    """Rayleigh's principle, for any two calibrations."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(D, D, generator=generator, dtype=torch.float64)
    samples = torch.randn(2, 500, D, generator=generator, dtype=torch.float64)
    a, b = site_of(samples[0] @ mixing), site_of(samples[1])
    assert compared(a, b).excess >= 1 - 1e-9
    assert compared(b, a).excess >= 1 - 1e-9


def test_nothing_is_compared_where_the_null_spaces_differ():
    x = torch.randn(500, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = site_of(x)
    other = (a[0], a[1] | {"null_dimension": 1}, a[2])
    assert compared(a, other).excess is None


def test_calibrations_of_a_checkpoint(planted, tmp_path):
    subject, paths = planted
    corpora = {f"random {seed}": path for seed, path in paths.items()}
    rows = checked("table5", calibration_rows(subject, corpora, 8, 4), tmp_path)
    assert len(rows) == 4
    for row in rows:
        assert row["excess"] >= 1 - 1e-9
        assert row["kernel_cosine"] > 0.9999
        assert row["kernel_cosine_change"] < 1e-6
        same = row["calibration"] == row["measured_on"]
        assert (row["excess_se"] is None) == same


# ------------------------------------------------------------------------- estimators


def test_the_streams_of_one_pass_are_what_separate_passes_give(planted, tmp_path):
    subject, paths = planted
    rows = checked("estimators", estimator_rows(subject, paths[0], 4), tmp_path)
    by = {(row["estimator"], row["block"]): row for row in rows}
    assert {row["estimator"] for row in rows} == set(STREAMS)
    for block in range(3):
        first = by["first position", block]
        # a causal model's first position sees one token alone
        assert first["sigma_max_per_root_n"] <= first["floor_per_root_n"]
        assert first["n"] == 32
        assert first["ratio"] is None
        assert by["later positions", block]["n"] == 32 * 10
        assert by["sink-excised", block]["n"] == 32 * 12 - 4
        assert by["second position", block]["sigma_max_per_root_n"] > 1e-3
    assert by["centred", 0]["ratio"] == 1.0
    assert by["centred", 2]["ratio_se"] > 0


def test_the_estimators_are_computed_on_the_activations_themselves(planted):
    subject, paths = planted
    site = next(site for site in subject.anatomy.sites if site.id == "decoder/block.2/output")
    model = subject.build("float32")
    found = observed(model, [site], subject, paths[0], 4)[site.id]
    kept = []
    handle = model.get_submodule(site.module).register_forward_hook(
        lambda _m, _i, output: kept.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        for batch in subject.batches(paths[0], 8):
            model(**batch.inputs)
    handle.remove()
    x = torch.cat(kept).double()

    def scatter(rows):
        return (rows - rows.mean(0)).T @ (rows - rows.mean(0))

    np.testing.assert_allclose(found["centred"].scatter(), scatter(x.flatten(0, 1)), rtol=1e-6)
    later = scatter(x[:, 2:].flatten(0, 1))
    np.testing.assert_allclose(found["later positions"].scatter(), later, rtol=1e-6)
    second = scatter(x[:, 1])
    np.testing.assert_allclose(found["second position"].scatter(), second, atol=1e-6)
    chunks = [part.flatten(0, 1) for part in x.split(8)]
    anchored = torch.cat([chunk - chunk.median(0).values for chunk in chunks])
    np.testing.assert_allclose(
        found["median-anchored"].scatter(centred=False), anchored.T @ anchored, rtol=1e-5
    )


# ----------------------------------------------------------------------- sample budget


def test_subsets_that_are_the_whole_pool_have_no_spread(planted, tmp_path):
    generator = torch.Generator().manual_seed(0)
    units = []
    for _ in range(120):
        accumulator = Accumulator("cov64", D)
        accumulator.update(torch.randn(20, D, generator=generator, dtype=torch.float64))
        units.append(accumulator.moments())
    design = budgets.Design((2.5, 15.0), 10, 0)
    rows = checked(
        "sample_budget", budgets.budget_rows(planted[0], {"site": units}, design), tmp_path
    )
    by = {(row["design"], row["n"]): row for row in rows}
    assert by["one pool", 240]["variation"] == 0
    assert by["disjoint", 240]["variation"] > 0.01
    assert by["disjoint", 40]["variation"] > by["disjoint", 240]["variation"]
    # isotropic samples: the bias is that of Marchenko and Pastur
    for row in rows:
        if row["design"] == "disjoint":
            expected = row["marchenko_pastur"]
            assert row["mean_over_eigenvalue"] * row["eigenvalue"] == pytest.approx(
                expected, abs=0.08
            )
            assert row["variation"] <= row["wishart_bound"]
    # the jackknife is not too small (at the edge of a bulk it is too large)
    assert by["disjoint", 240]["jackknife_variation"] > 0.7 * by["disjoint", 240]["variation"]


def test_disjoint_subsets_share_nothing_and_too_few_units_are_refused(planted):
    chosen = budgets.subsets_of(40, 4, 10, True, 0)
    assert len(np.unique(np.concatenate(chosen))) == 40
    accumulator = Accumulator("cov64", D)
    accumulator.update(torch.randn(40, D, dtype=torch.float64))
    units = [accumulator.moments()] * 5
    with pytest.raises(InputError, match="take more than the 5"):
        budgets.budget_rows(planted[0], {"site": units}, budgets.Design((100,), 10, 0))


# --------------------------------------------------------------------------- precision


def test_what_each_arithmetic_hides(planted, tmp_path):
    subject, paths = planted
    rows = checked("precision", precision.precision_rows(subject, paths[0], 8), tmp_path)
    by = {(row["forward_dtype"], row["accumulation"]): row for row in rows}
    assert len(by) == 9
    best = by["float64", "tsqr64"]
    assert best["directions_hidden"] == 0
    assert best["largest_error"] == 0
    assert by["float64", "cov64"]["largest_error"] < 1e-6
    assert (
        by["bfloat16", "tsqr64"]["embedding_floor"]
        > 1e4 * by["float32", "tsqr64"]["embedding_floor"]
    )
    assert by["float32", "cov32"]["embedding_floor"] > by["float32", "cov64"]["embedding_floor"]


# ---------------------------------------------------------------------- norms, table 6


def test_every_kernel_is_as_inspection_predicts(tmp_path):
    rows = checked("norm_zoo", norm_zoo_rows(0), tmp_path)
    assert all(row["as_predicted"] for row in rows)
    layer_norm = rows[0]
    assert layer_norm["containment"] > 1 - 1e-12
    assert layer_norm["other_containment"] < 0.95  # gains enter the kernel
    dimensions = {(row["norm"], row["sample"]): row["null_dimension"] for row in rows}
    assert dimensions["GroupNorm", "channels"] == 4
    assert dimensions["BatchNorm", "channels"] == dimensions["RMSNorm", "channels"] == 0


def test_a_wrong_prediction_is_seen():
    layer_norm, rms_norm = NORMS[0], NORMS[1]
    x = torch.randn(500, 24, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gain = torch.linspace(0.4, 2.0, 24, dtype=torch.float64)
    outputs = {norm.name: norm.vector(norm.forward(x, gain)) for norm in (layer_norm, rms_norm)}
    assert not _row(layer_norm, outputs["RMSNorm"], gain.numpy())["as_predicted"]
    assert not _row(layer_norm, outputs["LayerNorm"], gain.numpy()[::-1])["as_predicted"]
    assert not _row(rms_norm, outputs["LayerNorm"], gain.numpy())["as_predicted"]


def test_gradient_descent_keeps_the_shift_of_a_softmax_and_adam_does_not(tmp_path):
    rows = checked("table6", applicability_rows(0), tmp_path)
    by = {(row["optimiser"], row["loss"]): row for row in rows}
    assert len(rows) == 28
    assert by["SGD", "cross-entropy"]["shift_share"] <= by["SGD", "cross-entropy"]["floor"]
    assert by["Adam", "cross-entropy"]["shift_share"] > 0.1
    assert by["SGD", "squared error"]["shift_share"] > 0.1  # squared error has no such symmetry
    assert by["SGD", "cross-entropy"]["fisher_smallest"] < 1e-12
    assert by["SGD", "cross-entropy"]["fisher_next"] > 0.1
    assert by["SGD", "squared error"]["fisher_smallest"] == 1


# --------------------------------------------------------------------- rank allocation


@pytest.mark.parametrize("allocation", ["uniform", "early", "late"])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.25])
def test_ranks_spend_the_budget(allocation, share):
    found = ranks(allocation, share, 12, 64)
    assert sum(found) == round(share * 12 * 64)
    assert max(found) < 64
    assert min(found) >= 0
    order = {"uniform": 0, "early": -1, "late": 1}[allocation]
    steps = np.diff(found)
    assert (abs(steps) <= 1).all() if not order else (order * steps >= 0).all()
    if order:
        assert found[{-1: -1, 1: 0}[order]] == 0


def test_nothing_removed_is_the_model_and_much_removed_is_not(planted, tmp_path):
    subject, paths = planted
    rows = checked("figure7", allocation_rows(subject, paths[0], (0.1, 0.9), 8, 8), tmp_path)
    none = rows[0]
    assert none["removed"] == 0
    assert none["perplexity_ratio"] == 1
    model = subject.build("float32")
    batch = next(iter(subject.batches(paths[0], 8, shard=(1, 2))))
    with torch.no_grad():
        loss = model(**batch.inputs, labels=batch.inputs["input_ids"]).loss
    assert none["loss"] == pytest.approx(float(loss), rel=1e-5)
    most = next(row for row in rows if (row["allocation"], row["share"]) == ("uniform", 0.9))
    least = next(row for row in rows if (row["allocation"], row["share"]) == ("uniform", 0.1))
    assert abs(most["loss_rise"]) > abs(least["loss_rise"]) > 0


def test_a_removal_puts_the_mean_along_its_directions_and_nothing_else():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, D, generator=generator)
    basis = torch.linalg.qr(torch.randn(D, 4, generator=generator)).Q
    mean = torch.randn(D, generator=generator)
    removed = Removal(basis, mean)(x)
    torch.testing.assert_close(removed @ basis, (mean @ basis).expand(3, 5, 4), atol=1e-5, rtol=0)
    assert ((removed - x) - (removed - x) @ basis @ basis.T).abs().max() < 1e-5


# -------------------------------------------------------------- placements, directions


def test_placements_at_random_initialisation(tmp_path):
    shapes = [f"config/shapes/placement/{name}-8x128.json" for name in ("gemma", "gemma3")]
    small = []
    for shape in shapes:
        keys = json.loads(Path(shape).read_text())
        keys |= {"hidden_size": 16, "num_hidden_layers": 2, "head_dim": 4, "intermediate_size": 32}
        keys |= {"vocab_size": 97, "query_pre_attn_scalar": 4}
        if "layer_types" in keys:
            keys["layer_types"] = keys["layer_types"][:2]
        small.append(tmp_path / shape.rpartition("/")[2])
        small[-1].write_text(json.dumps(keys))
    rows = checked("mechanism", placement_rows(small, [1, 2], 16, 12, 4), tmp_path)
    assert len(rows) == 2 * 2 * 2 * 2
    for row in rows:
        sandwich = row["placement"] == "sandwich"
        assert (row["post_norm_concentration"] is not None) == sandwich
        assert row["kind"] == "random initialisation"
        assert row["lowers"] is not None
        assert row["correlation"] is not None
    assert {row["revision"] for row in rows} == {"seed1", "seed2"}


@pytest.mark.parametrize("zeros", [(), (3,), (3, 7)])
@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_directions_are_read_back_as_written(tmp_path, kind, zeros):
    gain = np.linspace(0.5, 2.0, D)
    gain[list(zeros)] = 0
    bias = np.linspace(-1, 1, D) if kind == "LayerNorm" else None
    found = directions_of_norm(kind, gain, bias, 1e-7)
    path = tmp_path / "dead_directions.safetensors"
    write_directions(path, {"norm": found}, {"model": "m"})
    first = path.read_bytes()
    read = read_directions(path)["norm"]
    assert (read.kind, read.floor) == (kind, 1e-7)
    assert len(read.kernel) == (max(len(zeros), 1) if zeros or kind == "LayerNorm" else 0)
    for part in ("v", "kernel", "constant"):
        np.testing.assert_array_equal(getattr(read, part), getattr(found, part))
    write_directions(path, {"norm": found}, {"model": "m"})
    assert path.read_bytes() == first


def test_a_file_of_something_else_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.ones(3)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("text")
    for name in ("other", "text", "absent"):
        with pytest.raises(InputError, match=name):
            read_directions(tmp_path / f"{name}.safetensors")


def test_a_constrained_artifact_loses_nothing_and_one_by_another_direction_does(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, D, generator=generator, dtype=torch.float64)
    gain = torch.linspace(0.5, 2.0, D, dtype=torch.float64)
    bias = torch.linspace(-1.0, 2.0, D, dtype=torch.float64)
    outputs = torch.nn.functional.layer_norm(x, (D,), gain, bias).numpy()
    found = directions_of_norm("LayerNorm", gain.numpy(), bias.numpy())
    kept, alone, other = adapter_rows(outputs, found, 0)
    assert kept["change"] <= kept["floor"] < 1e-2 < alone["change"]
    assert other["change"] > 1e-2
    assert kept["removed_share"] > 0.01
    decoder, control = decoder_rows(outputs, found, 0)
    assert decoder["error_constrained"] <= decoder["error"]
    assert control["error_constrained"] > control["error"]
    labels = {"model": "m", "revision": "r", "norm": "n", "n": 600, "forward_dtype": "float64"}
    rows = [labels | row for row in (kept, alone, other, decoder, control)]
    checked("constrained_artifacts", rows, tmp_path)


# -------------------------------------------------------------------------- trajectory


def test_every_kept_step_of_every_run_is_measured(tmp_path):
    for run, step, seed in (("seed1", 0, 1), ("seed1", 8, 2), ("seed2", 0, 3)):
        write(tmp_path / "runs" / run / f"step{step}", gpt2_config(n_embd=D, vocab_size=211), seed)
    found = trajectory_rows(
        "tiny", tmp_path / "runs", ENTRY, None, Settings(16, 12, 0, Bos.NEVER), 8, 4
    )
    rows = checked("trajectory", found, tmp_path)
    assert len(rows) == 3 * 3
    assert {(row["run"], row["step"]) for row in rows} == {("seed1", 0), ("seed1", 8), ("seed2", 0)}
    assert all(row["kernel_cosine"] > 0.9999 > row["ones_cosine"] for row in rows)
    assert all(row["ratio"] == 1 for row in rows if row["block"] == 0)
    with pytest.raises(InputError, match="holds no kept step"):
        trajectory_rows("tiny", tmp_path, ENTRY, None, Settings(), 8, 4)
