"""What is there is never replaced, nothing is copied into itself, and what a source's modes are
does not matter.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.command import main
from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.transport.adapters import transport_adapter
from normgauge.transport.dictionaries import transport_dictionary
from normgauge.transport.folders import transform_folder
from normgauge.transport.optimizers import transport_optimizer
from normgauge.transport.outputs import new_output, require_new, tree_of
from normgauge.transport.sidecar import Sidecar
from normgauge.transport.vectors import transport_vectors
from unit.gauge_models import tiny
from unit.test_gauge_command import calibrated, stored

LLAMA = ("llama", "LlamaForCausalLM")
GAUGE = Gauge({"residual": Monomial.random(12, 42)})
RECORD = Sidecar.of(GAUGE, "b" * 64, "a" * 64)


@pytest.fixture
def model(tmp_path):
    return stored(tmp_path / "model", tiny(*LLAMA)[0])


@pytest.fixture
def adapter(tmp_path):
    return lora(tmp_path / "adapter")


def lora(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    module = "base_model.model.model.layers.0.mlp.up_proj"
    factors = {
        f"{module}.lora_A.weight": torch.ones(2, 12),
        f"{module}.lora_B.weight": torch.ones(20, 2),
    }
    save_file(factors, folder / "adapter_model.safetensors")
    return folder


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below a folder; links are not followed."""
    found: dict[str, bytes | str] = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            found[str(path.relative_to(folder))] = (
                os.readlink(path)
                if path.is_symlink()
                else path.read_bytes()
                if path.is_file()
                else ""
            )
    return found


def carried(tmp_path):
    """The three kinds of files that are moved, and how."""
    _, anatomy = tiny(*LLAMA)
    save_file({"v": torch.ones(12)}, tmp_path / "v.safetensors")
    save_file({"b_dec": torch.ones(12)}, tmp_path / "s.safetensors")
    torch.save({"state": {}, "param_groups": [{"params": []}]}, tmp_path / "o.pt")
    return {
        "v.safetensors": lambda source, to: transport_vectors(
            source, to, anatomy, GAUGE, "residual", RECORD
        ),
        "s.safetensors": lambda source, to: transport_dictionary(
            source, to, anatomy, GAUGE, "residual", RECORD
        ),
        "o.pt": lambda source, to: transport_optimizer(source, to, anatomy, GAUGE, RECORD),
    }


# ---------------------------------------------------------------- nothing is replaced


@pytest.mark.parametrize("name", ["v.safetensors", "s.safetensors", "o.pt"])
def test_a_carried_file_replaces_neither_its_source_nor_another_nor_a_record(tmp_path, name):
    move = carried(tmp_path)[name]
    suffix = Path(name).suffix
    (tmp_path / f"other{suffix}").write_text("kept")
    (tmp_path / f"link{suffix}").symlink_to("nowhere")
    (tmp_path / f"beside{suffix}.gauge.json").write_text("kept")
    before = contents(tmp_path)
    for destination in (
        name,
        f"other{suffix}",
        f"link{suffix}",
        f"beside{suffix}",
        f"other{suffix}/below{suffix}",
    ):
        with pytest.raises(InputError, match=r"exists already|is no folder"):
            move(tmp_path / name, tmp_path / destination)
    assert contents(tmp_path) == before
    move(tmp_path / name, tmp_path / f"new{suffix}")
    assert contents(tmp_path).keys() - before.keys() == {f"new{suffix}", f"new{suffix}.gauge.json"}


def test_no_command_replaces_a_model_a_gauge_or_a_folder(model, tmp_path, capsys):
    probes = calibrated(model, tiny(*LLAMA)[0])
    gauge, moved = str(tmp_path / "g.parquet"), str(tmp_path / "moved")
    assert main(["gauge", "random", str(model), gauge]) == 0
    assert main(["gauge", "apply", str(model), gauge, moved]) == 0
    before = contents(tmp_path)
    for arguments in (
        ["random", str(model), f"{model}/model.safetensors"],
        ["random", str(model), gauge],
        ["random", str(model), str(model)],
        ["recover", str(model), moved, f"{moved}/model.safetensors", *probes],
        ["recover", str(model), moved, gauge, *probes],  # also where the match would be certain
        ["apply", str(model), gauge, moved],
        ["apply", moved, gauge, gauge, "--inverse"],
    ):
        assert main(["gauge", *arguments]) == 1, arguments
        error = capsys.readouterr().err
        assert "exists already and would be replaced" in error
        assert error.count("\n") == 1
    assert contents(tmp_path) == before


def test_an_output_that_appears_while_it_is_made_is_kept(tmp_path):
    with (
        pytest.raises(InputError, match="made by another process"),
        new_output(tmp_path / "out") as temporary,
    ):
        temporary.write_text("mine")
        (tmp_path / "out").write_text("theirs")
    assert contents(tmp_path) == {"out": b"theirs"}


# ---------------------------------------------------------------- nothing lies inside its source


def outside(tmp_path: Path, folder: Path) -> list[Path]:
    """Places that lie inside a folder, though some do not look so."""
    (tmp_path / "alias").symlink_to(folder, target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    (folder / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    return [
        folder / "out/seed42",
        folder / "out",
        tmp_path / "alias/out",
        tmp_path / "elsewhere/out",
        folder / "linked/out",
    ]


def test_a_copy_never_lies_inside_the_folder_that_it_copies(model, adapter, tmp_path, capsys):
    _, anatomy = tiny(*LLAMA)
    assert main(["gauge", "random", str(model), str(tmp_path / "g.parquet")]) == 0
    for folder, move in (
        (model, lambda to: transform_folder(model, to, GAUGE)),
        (adapter, lambda to: transport_adapter(adapter, to, anatomy, GAUGE, RECORD)),
    ):
        places = outside(tmp_path, folder)
        before = contents(tmp_path)
        for destination in places:
            with pytest.raises(InputError, match="lies inside"):
                move(destination)
        if folder == model:
            for arguments in (
                ["apply", str(model), str(tmp_path / "g.parquet")],
                ["random", str(model)],
            ):
                assert main(["gauge", *arguments, str(model / "out/new")]) == 1
                assert "lies inside" in capsys.readouterr().err
        assert contents(tmp_path) == before
        (tmp_path / "alias").unlink()
        (folder / "linked").unlink()
        shutil.rmtree(tmp_path / "elsewhere")
    transform_folder(model, tmp_path / "models/moved", GAUGE)  # beside it, in a folder that is made
    assert (tmp_path / "models/moved/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("link", "target"),
    [("link", "."), ("link", ".."), ("sub/link", "../../model/sub"), ("sub/link", "..")],
)
def test_a_folder_that_links_to_itself_is_not_copied(model, tmp_path, link, target):
    (model / "sub").mkdir()
    (model / link).symlink_to(target, target_is_directory=True)
    before = contents(tmp_path)
    for move in (
        lambda: transform_folder(model, tmp_path / "moved", GAUGE),
        lambda: require_new(tmp_path / "moved", model),
    ):
        with pytest.raises(InputError, match=r"links to a folder that holds it|lies inside"):
            move()
    assert contents(tmp_path) == before


def test_links_to_files_and_folders_are_followed_and_dead_ones_named(model, tmp_path):
    """As the hub's client lays a snapshot out: every file a link into another folder."""
    (tmp_path / "blobs").mkdir()
    for path in list(model.iterdir()):
        path.rename(tmp_path / "blobs" / path.name)
        path.symlink_to(Path("..", "blobs", path.name))
    (model / "more").symlink_to(tmp_path / "blobs", target_is_directory=True)
    (tmp_path / "blobs/model.safetensors").rename(tmp_path / "blobs/weights")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../blobs/weights")
    assert [str(file) for file in tree_of(model).files if file.parts[0] == "more"] == [
        f"more/{name}" for name in sorted(os.listdir(tmp_path / "blobs"))
    ]
    (model / "dead").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"model/dead: neither a file nor a folder"):
        transform_folder(model, tmp_path / "moved", GAUGE)
    (model / "dead").unlink()
    (model / "more").unlink()
    transform_folder(model, tmp_path / "moved", GAUGE)
    assert all(not path.is_symlink() for path in (tmp_path / "moved").iterdir())
    own, there = (
        load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
        for folder in (model, tmp_path / "moved")
    )
    assert torch.equal(there, GAUGE.elements["residual"].apply(own))


# ---------------------------------------------------------------- modes


@contextmanager
def stopped_by_modes():
    """As another user, where this one is root, whom no mode stops."""
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)


def test_read_only_folders_are_copied_with_modes_of_new_files():
    checkpoint, anatomy = tiny(*LLAMA)
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        base = Path(place)
        if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in base.parents):
            pytest.skip(
                "run as root, with a folder of temporary files that is closed to the other user "
                "whom modes would stop; set TMPDIR"
            )
        base.chmod(0o777)
        model, adapter = stored(base / "model", checkpoint), lora(base / "adapter")
        (model / "images").mkdir()
        (model / "images/figure.txt").write_text("")
        for folder in (model, adapter):
            for path in (*folder.rglob("*"), folder):
                path.chmod(0o555 if path.is_dir() else 0o444)
        with stopped_by_modes():
            transform_folder(model, base / "out/moved", GAUGE)
            transport_adapter(adapter, base / "out/adapter", anatomy, GAUGE, RECORD)
            assert all(path.stat().st_mode & 0o200 for path in (base / "out").rglob("*"))
            assert (base / "out/moved/images/figure.txt").is_file()
            shutil.rmtree(base / "out")
