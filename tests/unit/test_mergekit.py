"""mergekit merges a model with an aligned one by the recipes of the documentation.

Opt-in: mergekit is no dependency. Install it into an environment of its own and name its command,
NORMGAUGE_MERGEKIT=/path/to/mergekit-yaml, or have `mergekit-yaml` on the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

import normgauge
from normgauge.command import main

COMMAND = os.environ.get("NORMGAUGE_MERGEKIT") or shutil.which("mergekit-yaml")
RECIPES = Path(__file__).parents[2] / "docs/recipes"

pytestmark = pytest.mark.skipif(
    COMMAND is None, reason="mergekit is not installed; name it in NORMGAUGE_MERGEKIT"
)


def halfway(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """mergekit's spherical interpolation at t = 1/2 (merge_methods/slerp.py): linear where the
    cosine exceeds 0.9995.
    """
    cosine = np.sum(first / np.linalg.norm(first) * (second / np.linalg.norm(second)))
    if abs(cosine) > 0.9995:
        return (first + second) / 2
    angle = np.arccos(cosine)
    return np.sin(angle / 2) / np.sin(angle) * (first + second)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Folders a, b (a in other coordinates, a little changed) and aligned, by the command."""
    place = tmp_path_factory.mktemp("merge")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    a = transformers.LlamaForCausalLM(config).eval()
    b = normgauge.transform(a, normgauge.random_gauge(a, seed=1))
    with torch.no_grad():
        for parameter in b.parameters():
            parameter += 0.05 * parameter.std(correction=0) * torch.randn_like(parameter)
    for name, model in (("a", a), ("b", b)):
        model.save_pretrained(place / name)
    # status 1 where a head of these random models is doubtful
    assert main(["align", str(place / "a"), str(place / "b"), str(place / "aligned")]) in (0, 1)
    return place


@pytest.mark.parametrize("recipe", ["linear", "slerp"])
def test_the_recipe_runs_and_is_its_formula(pair, recipe):
    out = pair / f"merged-{recipe}"
    done = subprocess.run(
        [
            str(COMMAND),
            str(RECIPES / f"{recipe}.yaml"),
            str(out),
            "--no-write-model-card",
            "--no-copy-tokenizer",
        ],
        cwd=pair,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, merged = (
        load_file(folder / "model.safetensors") for folder in (pair / "a", pair / "aligned", out)
    )
    between = halfway if recipe == "slerp" else lambda one, two: (one + two) / 2
    for name, value in merged.items():
        expected = between(*(each[name].astype(np.float64) for each in (first, second)))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=name)
