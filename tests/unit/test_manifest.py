"""checkpoint.json: what it says, that it can be read back, and that it does not depend on where or
when it was made.
"""

import dataclasses
import hashlib
import json
import types

import pytest
import torch

from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    Norm,
    NormKind,
    Placement,
    Positions,
    Role,
    Segment,
    Space,
    SpaceKind,
    Stack,
    Tensor,
)
from normgauge.checkpoints.manifest import (
    Manifest,
    build_manifest,
    file_records,
    stored_precision,
    weights_sha256,
    write_manifest,
)
from normgauge.errors import InputError

ENTRY = {
    "source": {"path": "/data/mine"},
    "modality": "text",
    "calibration": "kjv",
    "licence": "MIT",
    "objective": "causal LM",
}


def axis(space: str, size: int, role: Role = Role.READ) -> Axis:
    return Axis(role, (Segment(space, 0, size),))


def toy_anatomy(terminal: bool = True) -> Anatomy:
    """An RMSNorm decoder of width 4 whose readout is tied to its embedding."""
    norms = (
        Norm("block.0.query_norm", NormKind.LAYER_NORM, "query", 2, None, None, 1e-6),
        Norm(
            "block.0.norm",
            NormKind.RMS_NORM,
            "residual",
            4,
            "block.0.norm.weight",
            None,
            1e-6,
            gain_offset=1.0,
        ),
        Norm("norm", NormKind.RMS_NORM, "residual", 4, "norm.weight", None, 1e-6, gain_offset=1.0),
    )
    tensors = (
        Tensor(
            "embed.weight", (axis("vocabulary", 7, Role.INDEX), axis("residual", 4, Role.WRITE))
        ),
        Tensor("norm.weight", (axis("residual", 4, Role.NORMALISE),)),
        Tensor(
            "head.weight",
            (axis("vocabulary", 7, Role.INDEX), axis("residual", 4)),
            alias_of="embed.weight",
        ),
    )
    return Anatomy(
        family="toy",
        architecture="ToyForCausalLM",
        placement=Placement.PRE,
        spaces=(Space("residual", SpaceKind.RESIDUAL, 4),),
        tensors=tensors,
        maps=(),
        norms=norms,
        stacks=(
            Stack(
                "decoder", "residual", 4, ("block.0",), "norm" if terminal else None, causal=True
            ),
        ),
        sites=(),
        positions=Positions.ROTARY,
        tied=True,
    )


def toy_checkpoint(matrix: str = "F32", vector: str = "F32", folder=None) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        tensors={"embed.weight": torch.zeros(7, 4), "norm.weight": torch.zeros(4)},
        stored={"embed.weight": matrix, "norm.weight": vector},
        files=(folder / "deep" / "model.safetensors",) if folder else (),
        unused={
            "pooler.weight": types.SimpleNamespace(
                tensor=torch.zeros(4, 4), stored="F16", reason="a head that the class lacks"
            )
        },
    )


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.joinpath("deep").mkdir(parents=True)
    folder.joinpath("config.json").write_bytes(b"{}")
    folder.joinpath("deep", "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def manifest(folder):
    return build_manifest(
        "mine", "local", ENTRY, folder, toy_anatomy(), toy_checkpoint(folder=folder)
    )


def test_says_what_the_checkpoint_is(manifest):
    assert dataclasses.asdict(manifest) == {
        "model": "mine",
        "revision": "local",
        "source": {"path": "mine", "revision": "local"},
        "files": [
            {"path": "config.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
            {
                "path": "deep/model.safetensors",
                "bytes": 7,
                "sha256": hashlib.sha256(b"weights").hexdigest(),
            },
        ],
        "weights": ["deep/model.safetensors"],
        "weights_sha256": manifest.weights_sha256,
        "unused": [
            {
                "tensor": "pooler.weight",
                "stored": "F16",
                "shape": [4, 4],
                "reason": "a head that the class lacks",
            }
        ],
        "family": "toy",
        "architecture": "ToyForCausalLM",
        "stacks": [{"name": "decoder", "blocks": 1, "width": 4}],
        "norm_kind": "RMSNorm",
        "norm_placement": "pre-norm",
        "terminal_norm": "norm",
        "gain_offset": 1.0,
        "stored_dtypes": {"F32": 32},
        "precision": "full",
        "tied": True,
        "parameters": 32,
        "licence": "MIT",
        "provenance": "user supplied",
        "objective": "causal LM",
        "modality": "text",
        "calibration": "kjv",
    }


@pytest.mark.parametrize(
    ("source", "revision", "provenance", "recorded"),
    [
        (
            {"hub": "org/name", "revision": ["0" * 40, "1" * 40]},
            "1" * 40,
            "published",
            {"hub": "org/name", "revision": "1" * 40},
        ),
        (
            {"package": "name==1.0", "sha256": "0" * 64, "path": "x"},
            "1.0",
            "published",
            {"package": "name==1.0", "sha256": "0" * 64, "paths": ["x"]},
        ),
        (
            {"path": "/data/folder"},
            "local",
            "user supplied",
            {"path": "folder", "revision": "local"},
        ),
        (
            {"random_init": {"config": "/data/file.json", "seed": [1, 2]}},
            "seed2",
            "random initialisation",
            {"random_init": {"config": "file.json", "seed": 2}},
        ),
        (
            {"trained": {"recipe": "nano", "seed": 1}},
            "seed1",
            "trained here",
            {"trained": {"recipe": "nano", "seed": 1}},
        ),
    ],
)
def test_provenance(folder, source, revision, provenance, recorded):
    manifest = build_manifest(
        "mine",
        revision,
        {**ENTRY, "source": source},
        folder,
        toy_anatomy(),
        toy_checkpoint(folder=folder),
    )
    assert manifest.provenance == provenance
    assert manifest.source == recorded


def test_without_terminal_norm(folder):
    manifest = build_manifest(
        "mine",
        "local",
        {**ENTRY, "licence": None},
        folder,
        toy_anatomy(terminal=False),
        toy_checkpoint(),
    )
    assert (manifest.terminal_norm, manifest.gain_offset, manifest.norm_kind, manifest.licence) == (
        None,
        1.0,
        "RMSNorm",
        None,
    )


@pytest.mark.parametrize(
    ("matrix", "vector", "precision"),
    [
        ("F32", "F32", "full"),
        ("F64", "F32", "full"),
        ("F32", "I64", "full"),
        ("F16", "F16", "half"),
        ("BF16", "F32", "half"),
        ("F32", "BF16", "half"),
        ("Q4_1", "F32", "quantised"),
        ("Q6_K", "F16", "quantised"),
        ("I8", "F32", "quantised"),
    ],
)
def test_precision(matrix, vector, precision):
    checkpoint = toy_checkpoint(matrix, vector)
    assert stored_precision(checkpoint.stored, checkpoint.tensors) == precision


def test_values_are_counted_per_stored_dtype(folder):
    manifest = build_manifest("mine", "local", ENTRY, folder, toy_anatomy(), toy_checkpoint("Q4_1"))
    assert manifest.stored_dtypes == {"Q4_1": 28, "F32": 4}


def test_round_trip_and_same_bytes(manifest, folder, tmp_path):
    write_manifest(tmp_path / "checkpoint.json", manifest)
    assert Manifest.read(tmp_path / "checkpoint.json") == manifest
    again = build_manifest(
        "mine", "local", ENTRY, folder, toy_anatomy(), toy_checkpoint(folder=folder)
    )
    write_manifest(tmp_path / "again.json", again)
    content = tmp_path.joinpath("checkpoint.json").read_bytes()
    assert content == tmp_path.joinpath("again.json").read_bytes()
    assert b"/data" not in content
    assert str(tmp_path).encode() not in content


def test_the_hash_of_weights_is_that_of_the_weight_files_alone(folder):
    weights = ("deep/model.safetensors", "second.safetensors")
    folder.joinpath("second.safetensors").write_bytes(b"more")
    files = file_records(folder)
    before = weights_sha256(files, weights)
    assert before == weights_sha256(files[::-1], weights[::-1])
    lines = sorted(
        f"{record['sha256']}  {record['path']}\n" for record in files if record["path"] in weights
    )
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    for name in ("README.md", ".DS_Store", ".snakemake_timestamp", "config.json"):
        folder.joinpath(name).write_bytes(name.encode())
    folder.joinpath(".cache").mkdir()
    folder.joinpath(".cache", "lock").write_bytes(b"")
    assert {record["path"] for record in file_records(folder)} == {
        *weights,
        "README.md",
        "config.json",
    }
    assert weights_sha256(file_records(folder), weights) == before
    folder.joinpath("second.safetensors").write_bytes(b"other")
    assert weights_sha256(file_records(folder), weights) != before
    folder.joinpath("second.safetensors").rename(folder / "third.safetensors")
    assert (
        weights_sha256(file_records(folder), ("deep/model.safetensors", "third.safetensors"))
        != before
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("tied"), "the key tied is missing"),
        (lambda content: content.update(extra=1), "the key extra is unknown"),
        (
            lambda content: content.update(parameters="many"),
            "the key parameters holds 'many', expected int",
        ),
        (
            lambda content: content.update(parameters=True),
            "the key parameters holds True, expected int",
        ),
        (
            lambda content: content.update(licence=3),
            "the key licence holds 3, expected str or NoneType",
        ),
        (lambda content: content["files"].append("x"), "files holds 'x'"),
        (
            lambda content: content["files"][1].update(sha256="0" * 64),
            "weights_sha256 does not follow from files",
        ),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(manifest, tmp_path, change, message):
    path = tmp_path / "checkpoint.json"
    content = dataclasses.asdict(manifest)
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"checkpoint\.json") as caught:
        Manifest.read(path)
    assert message in str(caught.value)


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path):
    path = tmp_path / "checkpoint.json"
    with pytest.raises(InputError, match="cannot be read"):
        Manifest.read(path)
    for text, message in (("{", "not valid JSON"), ("[]", "expected a JSON object")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            Manifest.read(path)
