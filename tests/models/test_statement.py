"""The statement of the study on real weights: 1/gamma is the bottom of every LayerNorm's output,
and of no RMSNorm's.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normgauge.anatomy import describe
from normgauge.calibration.batches import batches
from normgauge.calibration.corpora import CORPORA, build_corpus
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.capture import capture, norm_rows
from normgauge.checkpoints.building import build_model, reinitialise
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.fingerprint import Identity, Measurement, measure, protocol_check
from normgauge.fingerprint.files import norm_facts
from normgauge.fingerprint.profile import norm_kind_from_activations
from normgauge.fingerprint.protocol import vanishes_along_kernel
from normgauge.fingerprint.spectrum import spectrum_columns
from normgauge.moments import Moments
from normgauge.schemas.inputs import tables
from normgauge.training.train import train
from real import ENTRIES, opened, real_folder, wheel_path

pytestmark = pytest.mark.network

LAYER_NORM = (
    "minilm-l6",
    "rxnfp-pretrained",
    "rxnfp-ft-10k",
    "rxnfp-ft",
    "sceptr-default",
    "whisper-tiny-en",
)
SEQUENCES, LENGTH = 8, 128


def calibration(model_id, config, folder, path):
    """Generated inputs, but for SCEPTR, which reads receptors only."""
    name, corpus = (
        {"whisper-tiny-en": "random-noise", "sceptr-default": "tcr"}.get(model_id, "random-tokens"),
        None,
    )
    if name == "tcr":
        corpus = path.with_name("tcr.parquet")
        build_corpus(name, wheel_path(*CORPORA[name].package), corpus)
    sequences = 4 if model_id == "whisper-tiny-en" else SEQUENCES
    prepare(
        {**ENTRIES[model_id], "calibration": name},
        folder,
        corpus,
        path,
        config=config,
        settings=Settings(sequences, LENGTH),
    )
    return path


def measured(model_id, tmp_path, forward_dtype="float32", model=None, accumulation="cov64"):
    """Moments of the residual and terminal sites, the sites and the norms of a real model on random
    tokens or noise.
    """
    checkpoint, folder = opened(model_id), real_folder(model_id)
    anatomy = describe(checkpoint.config)
    model = model or build_model(checkpoint, forward_dtype)
    path = calibration(model_id, checkpoint.config, folder, tmp_path / "calibration.parquet")
    sites = anatomy.sites_in(("residual", "terminal", "taps"))
    moments = capture(
        model,
        sites,
        batches(path, folder=folder, config=checkpoint.config, batch_size=4),
        accumulation,
    )
    norms = {row["norm"]: norm_facts(row) for row in norm_rows(anatomy, model.state_dict())}
    return Measurement(forward_dtype, moments, {site.id: site for site in sites}, norms), anatomy


def norm_outputs(measurement):
    for site in measurement.sites.values():
        if site.norm:
            moments, norm = measurement.moments[site.id], measurement.norms[site.norm]
            yield (
                site,
                moments,
                norm,
                spectrum_columns(site.id, moments, measurement.forward_dtype, norm),
            )


@pytest.mark.parametrize("model_id", LAYER_NORM)
def test_every_layer_norm_output_has_the_kernel(model_id, tmp_path):
    measurement, _ = measured(model_id, tmp_path)
    rows = list(norm_outputs(measurement))
    assert rows
    for site, moments, norm, columns in rows:
        cosine = (
            columns["cos_gamma_inv"]
            if columns["null_dimension"] <= 1
            else columns["null_cos_gamma_inv"]
        )
        assert cosine >= 0.9999, site.id
        assert protocol_check(columns, moments, norm) == [], site.id
        assert (
            norm_kind_from_activations(True, vanishes_along_kernel(columns), norm.has_zero_gain)
            == "LayerNorm"
        )


def test_the_last_norm_of_minilm_has_three_collapsed_gains(tmp_path):
    """The case for the null space: three constant coordinates leave the bottom vector undetermined,
    and 1/gamma among them.
    """
    measurement, _ = measured("minilm-l6", tmp_path)
    (columns,) = (
        columns
        for site, _, _, columns in norm_outputs(measurement)
        if site.id == "encoder/block.6/output"
    )
    assert columns["null_dimension"] == 3
    assert columns["null_cos_gamma_inv"] >= 0.9999


def test_whisper_in_float64_has_the_kernel_at_both_ends(tmp_path):
    measurement, anatomy = measured("whisper-tiny-en", tmp_path, "float64")
    ends = {
        site.stack: columns
        for site, _, _, columns in norm_outputs(measurement)
        if site.tap == "terminal_norm"
    }
    assert set(ends) == {stack.name for stack in anatomy.stacks}
    assert all(columns["cos_gamma_inv"] >= 0.9999 for columns in ends.values())


def test_smollm2_has_no_kernel(tmp_path):
    measurement, _ = measured("smollm2-135m", tmp_path)
    ((_, _, norm, columns),) = (
        (s, m, n, c) for s, m, n, c in norm_outputs(measurement) if s.tap == "terminal_norm"
    )
    assert columns["cos_gamma_inv"] <= 0.10
    assert columns["null_dimension"] == 0
    assert (
        norm_kind_from_activations(True, vanishes_along_kernel(columns), norm.has_zero_gain)
        == "RMSNorm"
    )


def test_the_re_initialised_twin_of_whisper_has_the_kernel(tmp_path):
    twin = reinitialise(opened("whisper-tiny-en"), 42, "float32")
    measurement, _ = measured("whisper-tiny-en", tmp_path, model=twin)
    assert all(
        columns["cos_gamma_inv"] >= 0.9999
        for site, _, _, columns in norm_outputs(measurement)
        if site.tap == "terminal_norm"
    )


def test_planted_faults_on_a_real_model_are_named(tmp_path):
    """The norm's input instead of its output, and the Gram matrix instead of the covariance."""
    measurement, _ = measured("whisper-tiny-en", tmp_path)
    terminal = "decoder/terminal_norm"
    norm = measurement.norms[measurement.sites[terminal].norm]
    wrong = measurement.moments["decoder/block.4/output"]
    assert protocol_check(spectrum_columns("wrong", wrong, "float32", norm), wrong, norm) == [
        "wrong-hook"
    ]
    good = measurement.moments[terminal]
    raw = Moments(good.method, good.n, good.mean, good.scatter(centred=False))
    columns = spectrum_columns("raw", raw, "float32", norm)
    assert columns["cos_gamma_inv"] < 0.9999
    assert protocol_check(columns, raw, norm) == ["raw-gram"]


def test_a_model_trained_here_has_the_kernel_and_its_rows(tmp_path):
    corpus = tmp_path / "corpus.parquet"
    text = " ".join(
        f"the {word} of number {index}"
        for index in range(4000)
        for word in ("cat", "house", "river")
    )
    document = {"document": 0, "name": "made", "text": text, "payload": None, "sha256": "0" * 64}
    tables.write(corpus, "corpus", [document], {"corpus": "made", "corpus_sha256": "0" * 64})
    folder = tmp_path / "checkpoint"
    train("gpt2-smoke", 42, corpus, folder, 1)
    checkpoint = open_checkpoint(folder)
    anatomy = describe(checkpoint.config)
    prepare(
        {"modality": "text", "calibration": "random-tokens"},
        folder,
        None,
        tmp_path / "c.parquet",
        config=checkpoint.config,
        settings=Settings(16, 32),
    )
    model = build_model(checkpoint, "float64")
    sites = anatomy.sites
    source = batches(tmp_path / "c.parquet", folder=folder, config=checkpoint.config)
    moments = capture(model, sites, source, "cov64")
    norms = {row["norm"]: norm_facts(row) for row in norm_rows(anatomy, checkpoint.tensors)}
    identity = Identity(
        "m",
        "r",
        anatomy.family,
        "trained here",
        "full",
        None,
        str(anatomy.placement),
        {"decoder": 2},
        "decoder",
    )
    fingerprint, schur, (row,) = measure(
        [Measurement("float64", moments, {s.id: s for s in sites}, norms)], identity
    )
    assert row["post_norm_cos_gamma_inv"] >= 0.9999
    assert row["norm_kinds_agree"]
    assert row["protocol"] == []
    assert len(schur) == 8
    assert len(fingerprint) == 2 * 2 + 2


def test_a_float32_floor_on_a_real_model_is_named(tmp_path):
    """minilm-l6's last norm: only float64 accumulation tells its kernel from other deep directions;
    float32 takes one for the bottom.
    """
    measurement, _ = measured("minilm-l6", tmp_path, accumulation="cov32")
    faults = {
        site.id: protocol_check(columns, moments, norm)
        for site, moments, norm, columns in norm_outputs(measurement)
    }
    assert faults["encoder/block.6/output"] == ["accumulator-floor"]
    assert faults["encoder/block.1/output"] == []


def test_capture_on_one_and_two_threads_differs_by_the_rounding_of_float32(tmp_path):
    """Equal bits cannot be had: BLAS splits the sums of a float32 forward pass by the number of its
    threads.
    """
    from threadpoolctl import threadpool_limits

    def run(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with threadpool_limits(threads):
                return measured("minilm-l6", tmp_path)[0].moments
        finally:
            torch.set_num_threads(before)

    one, two = run(1), run(2)
    scale = {key: np.abs(one[key].matrix).max() for key in one}
    worst = max(np.abs(one[key].matrix - two[key].matrix).max() / scale[key] for key in one)
    assert worst <= 1e-6
