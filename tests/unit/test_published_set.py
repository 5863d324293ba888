"""Every architecture of config/paper.yaml runs from the hub to the fingerprint, on tiny stand-ins
that a server on localhost hands out in place of the published checkpoints.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

from hub_server import COMMIT, Hub
from normgauge.anatomy import FAMILIES
from normgauge.anatomy.structure import NormKind
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.capture import CaptureSettings, capture_checkpoint
from normgauge.capture.checkpoint import check_configuration, describe_checkpoint
from normgauge.checkpoints.acquire import acquire
from normgauge.checkpoints.configuration import open_config
from normgauge.checkpoints.inner import INNER
from normgauge.fingerprint import fingerprint_checkpoint
from normgauge.fingerprint.directions import read_directions
from normgauge.schemas.fingerprint import tables
from unit.test_anatomy import CASES
from unit.test_inner import WHOLES

TABLE = yaml.safe_load(
    (Path(__file__).parents[2] / "config/paper.yaml").read_text(encoding="utf-8")
)
# beginning of an entry's name -> its model_type and the case whose tiny config stands in for it
ARCHITECTURES = {
    "pythia": ("gpt_neox", "gpt_neox"),
    "qwen2.5": ("qwen2", "qwen2"),
    "llama-2": ("llama", "llama"),
    "tinyllama": ("llama", "llama"),
    "gemma-1": ("gemma", "gemma"),
    "gemma-2": ("gemma2", "gemma2"),
    "gemma-3-1b": ("gemma3_text", "gemma3"),
    "gemma-3-4b": ("gemma3", None),
    "gemma-3-12b": ("gemma3", None),
    "qwen3.5": ("qwen3_5", None),
    "qwen3.6-27b": ("qwen3_5", None),
    "dinov2": ("dinov2", "dinov2"),
    "dinov3": ("dinov3_vit", "dinov3"),
    "vit-mae": ("vit_mae", "vit_mae"),
    "vit-b": ("vit", "vit"),
    "siglip2": ("siglip", None),
}
GENERATED = {"text": "random-tokens", "image": "random-noise"}
DTYPES = {"float64": ("residual", "terminal", "schur")}


def architecture(model: str) -> str:
    (found,) = {kind for start, kind in ARCHITECTURES.items() if model.startswith(start)}
    return found[0]


ONE_OF_EACH = {architecture(model): model for model in reversed(TABLE["study"]["models"])}


def stand_in(model_type: str, folder: Path) -> dict[str, bytes]:
    """The files of a random model of this architecture, by name."""
    if model_type in WHOLES:
        name, keys, *_ = WHOLES[model_type]
        config = transformers.CONFIG_MAPPING[model_type](**copy.deepcopy(keys))
    else:
        case = dict(ARCHITECTURES.values())[model_type]
        kind, keys, stem, endings = CASES[str(case)]
        config, name = getattr(transformers, kind)(**keys), stem + sorted(endings)[0]
    torch.manual_seed(1)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(model_type: str, entry: dict[str, Any], folder: Path) -> dict[str, Path]:
    """From the hub to the fingerprint, by the calls that the scripts of the rules make."""
    checkpoint, manifest = folder / "checkpoint", folder / "checkpoint.json"
    acquire("m", COMMIT, entry, checkpoint, check=lambda keys: check_configuration(entry, keys))
    describe_checkpoint("m", COMMIT, entry, checkpoint, manifest)
    calibration = folder / "calibration.parquet"
    config = open_config(checkpoint, entry.get("config"))
    prepare(entry, checkpoint, None, calibration, config=config, settings=Settings(16, 9, 42))
    capture_checkpoint(
        checkpoint,
        json.loads(manifest.read_text(encoding="utf-8")),
        calibration,
        folder / "moments",
        CaptureSettings(DTYPES, "auto", 8),
        named=("m", COMMIT),
        config_overrides=entry.get("config"),
    )
    names = ("fingerprint", "schur", "stacks", "summary", "mechanism")
    outputs = {name: folder / f"{name}.parquet" for name in names}
    outputs["directions"] = folder / "dead_directions.safetensors"
    fingerprint_checkpoint([folder / "moments"], list(DTYPES), manifest, outputs)
    return outputs


def test_every_entry_has_a_stand_in_of_a_described_architecture():
    kinds = {architecture(model) for model in TABLE["study"]["models"]}
    assert kinds == set(ONE_OF_EACH)
    assert kinds <= {*FAMILIES, *INNER}


@pytest.mark.parametrize("model_type", ONE_OF_EACH)
def test_an_architecture_of_the_published_set_runs_from_the_hub_to_its_fingerprint(
    tmp_path, monkeypatch, model_type
):
    entry = copy.deepcopy(TABLE["models"][ONE_OF_EACH[model_type]])
    entry["source"]["revision"] = COMMIT
    entry["calibration"] = GENERATED[entry["modality"]]
    files = stand_in(model_type, tmp_path / "published")
    with Hub(files, repository=entry["source"]["hub"]) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        outputs = run(model_type, entry, tmp_path / "results")
    rows = tables.read(outputs["fingerprint"], "fingerprint")
    (last,) = [row for row in rows if row["tap"] == "terminal_norm"]
    layer_norm = read_directions(outputs["directions"])[last["norm"]].kind == NormKind.LAYER_NORM
    assert (last["cos_gamma_inv"] > 1 - 1e-9) == layer_norm
    assert last["n"] >= 16 * 9
    assert tables.read(outputs["schur"], "schur")
