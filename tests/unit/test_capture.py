"""Hooks read exactly the named tensors, stream them, and refuse what cannot be measured before the
long work.
"""

from __future__ import annotations

import shutil
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import Norm, NormKind, Site
from normgauge.calibration.batches import Batch
from normgauge.capture import study
from normgauge.capture.hooks import capture
from normgauge.capture.norms import measurable_gain
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import capture_checkpoint, capture_model, moments_file, select_sites
from normgauge.checkpoints.skeleton import skeleton
from normgauge.errors import InputError
from normgauge.fingerprint import Identity, measure
from normgauge.fingerprint.files import read_measurement
from normgauge.moments import merge

WIDTH = 6


class Block(torch.nn.Module):
    """Called twice per forward pass with its input by keyword; returns a tuple, as transformers'
    blocks do.
    """

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states):
        return hidden_states + torch.tanh(3 * self.linear(hidden_states)), "attention weights"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, WIDTH)
        self.block = Block()
        self.head = torch.nn.Linear(WIDTH, 50)

    def forward(self, ids):
        hidden = self.embedding(ids)
        for _ in range(2):
            hidden = self.block(hidden_states=hidden)[0]
        return self.head(hidden)


def site(name, module="block", hook="output", call=0, group="residual", width=WIDTH, tap="output"):
    return Site(name, group, "decoder", 1, tap, module, hook, width, None, call)


SITES = (
    site("embedding", hook="input"),
    site("first"),
    site("second", call=1),
    site("linear input", "block.linear", "input", call=1),
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().double().eval().requires_grad_(False)


def ids(seed=0, batch=8, length=16):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(seed))


def batch(seed=0, mask=None, **shape):
    return Batch({"ids": ids(seed, **shape)}, {"decoder": mask})


def expected(model, tokens):
    zero = model.embedding(tokens)
    one = model.block(zero)[0]
    return {"embedding": zero, "first": one, "second": model.block(one)[0], "linear input": one}


def assert_moments(moments, rows):
    rows = rows.reshape(-1, WIDTH).numpy()
    centred = rows - rows.mean(0)
    assert moments.n == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), atol=1e-12)
    np.testing.assert_allclose(moments.scatter(), centred.T @ centred, atol=1e-10)


def test_every_site_sees_its_own_tensor_over_all_batches(model):
    measured = capture(model, SITES, [batch(0), batch(1)], "cov64")
    values = [expected(model, ids(seed)) for seed in (0, 1)]
    for name, moments in measured.items():
        assert_moments(moments, torch.cat([value[name] for value in values]))


def test_masked_positions_do_not_count(model):
    mask = torch.rand(8, 16, generator=torch.Generator().manual_seed(3)) < 0.5
    measured = capture(model, SITES, [batch(0, mask)], "cov64")
    for name, value in expected(model, ids(0)).items():
        assert_moments(measured[name], value[mask])


def test_shards_merge_to_the_whole(model):
    whole = capture(model, SITES, [batch(0), batch(1)], "cov64")
    parts = [capture(model, SITES, [batch(seed)], "cov64") for seed in (0, 1)]
    for name in whole:
        merged = merge(parts[0][name], parts[1][name])
        np.testing.assert_allclose(merged.scatter(), whole[name].scatter(), atol=1e-10)


def test_no_hook_is_left_behind(model):
    capture(model, SITES, [batch(0)], "cov64")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_module_that_is_not_there_or_not_called_is_named(model):
    with pytest.raises(InputError, match=r"site lost: the model has no module block\.norm"):
        capture(model, [site("lost", "block.norm")], [batch(0)], "cov64")
    with pytest.raises(InputError, match="site third: module block was not called 3 times"):
        capture(model, [site("third", call=2)], [batch(0)], "cov64")
    with pytest.raises(InputError, match="site wide: expected width 7"):
        capture(model, [site("wide", width=7)], [batch(0)], "cov64")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_activations_name_the_site_at_the_first_batch(model, value):
    model.embedding.weight[:, 2] = value
    seen = []

    def source():
        for seed in range(5):
            seen.append(seed)
            yield batch(seed)

    with pytest.raises(InputError, match="site embedding: activations hold NaN or infinity"):
        capture(model, SITES, source(), "cov64")
    assert seen == [0]


def test_too_few_samples_are_refused_after_the_first_batch(model):
    seen = []

    def source():
        for seed in range(5):
            seen.append(seed)
            yield batch(seed, batch=1, length=1)

    with pytest.raises(InputError, match="site embedding: 5 samples for 6 coordinates"):
        capture(model, SITES, source(), "cov64", first_batches=5)
    assert seen == [0]


def test_auto_takes_the_orthogonal_factor_exactly_where_the_spectrum_is_wide(model):
    model.embedding.weight[:, 0] = 1e-9 * model.embedding.weight[:, 0]
    measured = capture_model(model, SITES, lambda: [batch(0), batch(1)], 2, "auto", "label", 2, [])
    assert {name: moments.method for name, moments in measured.items()} == {
        "embedding": "tsqr64",
        "first": "cov64",
        "second": "cov64",
        "linear input": "cov64",
    }
    rows = torch.cat(
        [expected(model, ids(seed))["embedding"].reshape(-1, WIDTH) for seed in (0, 1)]
    )
    assert measured["embedding"].spectrum().values[0] == pytest.approx(
        torch.linalg.svdvals(rows - rows.mean(0))[-1].item(), rel=1e-5
    )


class Normed(torch.nn.Module):
    """A norm over rows that are given."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, rows):
        return self.norm(rows)


def passes_of_auto(norm, dtype=torch.float64, bias=None, gain=None):
    """How often `auto` reads the data for the output of `norm`, and the moments' method."""
    norm = norm.to(dtype).requires_grad_(False)
    if gain is not None:
        norm.weight.copy_(torch.tensor(gain))
    if bias is not None:
        norm.bias.copy_(torch.tensor(bias))
    rows = torch.randn(4, 64, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)
    begun = []

    def source():
        begun.append(True)
        return [
            Batch({"rows": rows[:2]}, {"decoder": None}),
            Batch({"rows": rows[2:]}, {"decoder": None}),
        ]

    kind = "LayerNorm" if isinstance(norm, torch.nn.LayerNorm) else "RMSNorm"
    stored = getattr(norm, "bias", None)
    facts = {"norm": "n", "kind": kind, "gain": norm.weight.double().tolist()}
    facts["bias"] = None if stored is None else stored.double().tolist()
    place = replace(site("normed", "norm"), norm="n")
    measured = capture_model(Normed(norm).eval(), [place], source, 2, "auto", "label", 2, [facts])
    return len(begun), measured["normed"].method


LAYER_NORM = partial(torch.nn.LayerNorm, WIDTH)
RMS_NORM = partial(torch.nn.RMSNorm, WIDTH, eps=1e-6)
TINY = [1e-9, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_auto_reads_the_data_once_where_only_the_exact_kernel_is_hidden():
    once = (1, "cov64")
    assert passes_of_auto(LAYER_NORM()) == once  # 1/gamma, centred and raw: the bias is zero
    # raw, 1/gamma is resolved
    assert passes_of_auto(LAYER_NORM(), bias=[0.3, 0.2, -0.1, 0.4, 0.1, 0.2]) == once
    assert passes_of_auto(LAYER_NORM(), gain=TINY) == once  # 1/gamma is that axis
    assert passes_of_auto(LAYER_NORM(), gain=[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]) == once
    assert (
        passes_of_auto(LAYER_NORM(), gain=[0.0, 0.0, *[1.0] * 4], bias=[0.3, 0.2, *[0.0] * 4])
        == once
    )
    assert passes_of_auto(RMS_NORM(), gain=[0.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == once


def test_auto_reads_the_data_twice_where_more_than_the_exact_kernel_is_hidden():
    twice = (2, "tsqr64")
    assert passes_of_auto(RMS_NORM(), gain=TINY) == twice
    assert passes_of_auto(LAYER_NORM(), gain=[1e-9, 1e-9, 1.0, 1.0, 1.0, 1.0]) == twice
    assert passes_of_auto(LAYER_NORM(), gain=[0.0, 1e-9, 1.0, 1.0, 1.0, 1.0]) == twice
    # sqrt(n) (bias . v) lies between the floors of the factor and of the scatter
    small = 1e-9 / 6**0.5
    assert passes_of_auto(LAYER_NORM(), bias=[small] * WIDTH) == twice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_reads_the_data_once_where_the_forward_floor_is_the_higher_one(dtype):
    assert passes_of_auto(RMS_NORM(), dtype, gain=TINY) == (1, "cov64")


class Sites:
    """An anatomy as far as the choice of sites needs one."""

    sites = (
        *SITES,
        site("schur", group="schur", tap="mlp_up_input"),
        site("other", group="schur", tap="query_key_value_input"),
    )

    def sites_in(self, groups):
        return tuple(each for each in self.sites if each.group in groups)


def test_choice_of_sites():
    assert [each.id for each in select_sites(Sites(), ["schur"])] == ["schur", "other"]
    assert [each.id for each in select_sites(Sites(), ["schur"], ["mlp_up_input"])] == ["schur"]
    assert len(select_sites(Sites(), ["residual", "terminal"], ["mlp_up_input"])) == len(SITES)
    with pytest.raises(InputError, match="group 'everything' is unknown"):
        select_sites(Sites(), ["everything"])
    with pytest.raises(InputError, match="Schur site 'mlp' is unknown"):
        select_sites(Sites(), ["schur"], ["mlp"])


def capture_shard(tmp_path, folder, manifest, shard, shards, **settings):
    chosen = {
        "forward_dtypes": {"float64": ["residual", "terminal"], "float32": ["residual"]},
        "accumulation": "cov64",
        "batch_size": 8,
        **settings,
    }
    capture_checkpoint(
        folder,
        manifest,
        tmp_path / "calibration.parquet",
        tmp_path / f"{shard}-of-{shards}",
        CaptureSettings(**chosen),
        named=("m", "r"),
        part=(shard, shards),
    )


@pytest.fixture
def tiny_gpt2(tmp_path):
    """A folder with a checkpoint and a calibration of 8 sequences."""
    from transformers import GPT2Config, GPT2Model

    from normgauge.calibration.prepare import prepare
    from normgauge.calibration.settings import Settings

    config = GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=60, n_positions=16, architectures=["GPT2Model"]
    )
    GPT2Model(config).save_pretrained(tmp_path / "checkpoint")
    entry = {"modality": "text", "calibration": "random-tokens"}
    prepare(
        entry,
        tmp_path / "checkpoint",
        None,
        tmp_path / "calibration.parquet",
        config=config,
        settings=Settings(8, 16),
    )
    return tmp_path


def test_one_model_is_in_memory_at_a_time(tiny_gpt2, monkeypatch):
    """Of one float64 and one float32 model, the first is gone when the second is built: their sum
    would be half again the memory.
    """
    built = []

    def build(*args):
        assert not any(model() for model in built)
        made = skeleton(*args)
        built.append(weakref.ref(made.model))
        return made

    monkeypatch.setattr(study, "skeleton", build)
    capture_shard(
        tiny_gpt2, tiny_gpt2 / "checkpoint", {"weights_sha256": "0", "precision": "full"}, 0, 1
    )
    assert len(built) == 2


def test_a_gpu_that_torch_does_not_see_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="this torch sees no GPU"):
        study.forward_device(1)
    assert study.forward_device(0) == torch.device("cpu")


def test_a_shard_smaller_than_the_batch_is_not_taken_for_the_whole(tiny_gpt2):
    """8 sequences in 4 shards with a batch of 8: the first batch of a shard holds 2 sequences, a
    quarter of the calibration.
    """
    tmp_path = tiny_gpt2
    for shard in range(4):
        capture_shard(
            tmp_path,
            tmp_path / "checkpoint",
            {"weights_sha256": "0", "precision": "full"},
            shard,
            4,
        )
    for forward_dtype, sites in (("float64", 3), ("float32", 2)):
        measurement = read_measurement(
            [tmp_path / f"{shard}-of-4" / forward_dtype for shard in range(4)]
        )
        assert measurement.forward_dtype == forward_dtype
        assert [moments.n for moments in measurement.moments.values()] == [128] * sites
    shutil.rmtree(tmp_path / "2-of-4" / "float32")
    with pytest.raises(
        InputError, match=r"2-of-4/float32/.*missing, though another shard has this site"
    ):
        read_measurement([tmp_path / f"{shard}-of-4" / "float32" for shard in range(4)])
    with pytest.raises(InputError, match=r"2-of-4/float32/norms.parquet: no such file"):
        read_measurement([tmp_path / "2-of-4" / "float32"])


@pytest.mark.parametrize("accumulation", ["cov64", "tsqr64"])
def test_neither_shards_nor_batches_move_the_uncertainty_over_sequences(tiny_gpt2, accumulation):
    """Three shards of 8 sequences cut two of the four groups in parts."""
    tmp_path, facts = tiny_gpt2, {"weights_sha256": "0", "precision": "full"}
    identity = Identity(
        "m", "r", "gpt2", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder"
    )
    found = []
    for shards, batch_size in ((1, 8), (3, 2)):
        settings = {"accumulation": accumulation, "batch_size": batch_size, "jackknife_groups": 4}
        settings |= {
            "forward_dtypes": {"float64": ["residual", "terminal", "schur"]},
            "schur_sites": ["query_key_value_input"],
        }
        for shard in range(shards):
            capture_shard(tmp_path, tmp_path / "checkpoint", facts, shard, shards, **settings)
        found.append(
            measure(
                [
                    read_measurement(
                        [tmp_path / f"{shard}-of-{shards}" / "float64" for shard in range(shards)]
                    )
                ],
                identity,
            )
        )
    for whole, parts in zip(*found, strict=True):
        for one, other in zip(whole, parts, strict=True):
            assert one["group_samples"] == other["group_samples"] in ([32] * 4, None)
            for name in (name for name in one if name.endswith("_se")):
                assert other[name] == (
                    None if one[name] is None else pytest.approx(one[name], rel=1e-5)
                )
    assert found[0][2][0]["max_ratio_se"] > 0


def test_more_shards_than_sequences_are_refused_before_any_weight_is_read(tmp_path):
    from transformers import GPT2Config

    from normgauge.calibration.prepare import prepare
    from normgauge.calibration.settings import Settings

    config = GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=60, n_positions=16, architectures=["GPT2Model"]
    )
    entry = {"modality": "text", "calibration": "random-tokens"}
    prepare(
        entry,
        tmp_path,
        None,
        tmp_path / "calibration.parquet",
        config=config,
        settings=Settings(8, 16),
    )
    for shard in range(9):
        with pytest.raises(InputError, match=r"capture.shards 9: more than the 8 sequences"):
            capture_shard(tmp_path, tmp_path / "no checkpoint", {}, shard, 9)


def norm(gain="g", offset=0.0):
    return Norm("ln", NormKind.RMS_NORM, "residual", 3, gain, None, 1e-6, offset)


def test_a_norm_whose_gains_are_all_zero_is_not_measured():
    assert measurable_gain(norm(), {"g": torch.tensor([-1.0, 0.0, 2.0])}).tolist() == [-1, 0, 2]
    with pytest.raises(InputError, match="every gain in g is zero"):
        measurable_gain(norm(), {"g": torch.zeros(3)})


def test_file_names():
    assert str(moments_file("decoder/block.3/output")) == "decoder__block.3__output.parquet"
