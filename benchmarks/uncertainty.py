"""What the uncertainty over sequences costs: capture, fingerprint and one twin with and without it,
each in a process of its own.

Needs checkpoints and calibrations: snakemake --cores 2 results/minilm-l6/0.1.0/summary.parquet (and
    the others)
How to run it: benchmarks/README.md [folder of results]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from side_by_side import peak_memory_mb, write_results

CHECKPOINTS = ("minilm-l6/0.1.0", "whisper-tiny-en/0.1.0", "smollm2-135m/0.1.2")
STAGES = ("capture", "fingerprint", "one twin")
GROUPS = (0, 8)
ROUNDS = 2


def settings(checkpoint: str) -> dict[str, Any]:
    model = checkpoint.split("/")[0]
    default = yaml.safe_load(Path("config/config.yaml").read_text(encoding="utf-8"))
    entry = yaml.safe_load(Path("config/models.yaml").read_text(encoding="utf-8"))["models"][model]
    return {
        **default["capture"],
        **entry.get("capture", {}),
        "config": entry.get("config"),
        "twins": default["reinitialised"],
    }


def run_stage(stage: str, checkpoint: str, groups: int, results: Path, scratch: Path) -> None:
    """One stage as its job does it; the process is measured as a whole."""
    folder, options = results / checkpoint, settings(checkpoint)
    from normgauge.capture import CaptureSettings

    def settings_of(chosen: dict[str, Any]) -> CaptureSettings:
        return CaptureSettings(
            chosen["forward_dtypes"],
            options["accumulation"],
            options["batch_size"],
            chosen["schur_sites"],
            groups,
        )

    calibration = folder / "calibration.parquet"
    manifest = folder / "checkpoint.json"
    outputs = {
        kind: scratch / f"{kind}.parquet" for kind in ("fingerprint", "schur", "stacks", "summary")
    }
    if stage == "capture":
        from normgauge.capture import capture_checkpoint

        model, _, revision = checkpoint.partition("/")
        capture_checkpoint(
            folder / "checkpoint",
            json.loads(manifest.read_text(encoding="utf-8")),
            calibration,
            scratch / "moments",
            settings_of(options),
            named=(model, revision),
            config_overrides=options["config"],
        )
    elif stage == "fingerprint":
        from normgauge.fingerprint import fingerprint_checkpoint

        fingerprint_checkpoint(
            [scratch / "moments"], list(options["forward_dtypes"]), manifest, outputs
        )
    else:
        from normgauge.fingerprint.reinitialised import fingerprint_reinitialised

        fingerprint_reinitialised(
            folder / "checkpoint",
            manifest,
            calibration,
            outputs,
            settings_of(options["twins"]),
            [42],
            config_overrides=options["config"],
        )


def measured(
    stage: str, checkpoint: str, groups: int, results: Path, scratch: Path
) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--stage",
        stage,
        checkpoint,
        str(groups),
        str(results),
        str(scratch),
    ]
    last = subprocess.run(
        command, capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout.splitlines()[-1]
    return {"groups": groups, **json.loads(last)}


def side_by_side(checkpoint: str, results: Path) -> list[dict[str, Any]]:
    """Stages with and without groups in turn; CPU seconds are the least of the rounds."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for groups in GROUPS:
            with tempfile.TemporaryDirectory() as scratch:
                for stage in STAGES:
                    found = measured(stage, checkpoint, groups, results, Path(scratch))
                    found["disk_mb"] = (
                        sum(
                            file.stat().st_size
                            for file in Path(scratch, "moments").rglob("*")
                            if file.is_file()
                        )
                        / 1e6
                    )
                    known = best.setdefault((stage, groups), found)
                    known["cpu_s"] = min(known["cpu_s"], found["cpu_s"])
    return [
        {
            "checkpoint": checkpoint,
            "stage": stage,
            "groups": groups,
            "cpu_s": f"{found['cpu_s']:.1f}",
            "peak_mb": f"{found['peak_mb']:.0f}",
            "moments_mb": f"{found['disk_mb']:.0f}" if stage == "capture" else "",
        }
        for (stage, groups), found in sorted(
            best.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])
        )
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stage"]:
        import torch

        torch.set_num_threads(1)
        stage, checkpoint, groups, results, scratch = sys.argv[2:]
        run_stage(stage, checkpoint, int(groups), Path(results), Path(scratch))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": peak_memory_mb()}))
    else:
        start = time.perf_counter()
        folder = Path(sys.argv[1]) if sys.argv[1:] else Path("results")
        write_results(
            "uncertainty",
            [row for checkpoint in CHECKPOINTS for row in side_by_side(checkpoint, folder)],
        )
