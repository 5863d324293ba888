"""Downloads from a hub: what is fetched, how it is verified, how it resumes, and what each fault
says.
"""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

from hub_server import COMMIT, REPOSITORY, Hub
from normgauge.checkpoints import hub as hub_module
from normgauge.checkpoints import layout
from normgauge.checkpoints.hub import fetch_repository
from normgauge.checkpoints.sources import HubSource
from normgauge.errors import InputError

CONFIG = json.dumps({"model_type": "gpt2", "note": "κ"}).encode()
WEIGHTS = hashlib.shake_256(b"weights").digest(300_000)
SOURCE = HubSource(REPOSITORY, (COMMIT,))


def repository() -> dict[str, bytes]:
    return {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"a pickle",
        "tokenizer.json": b"{}",
        "modeling_model.py": b"raise SystemExit",
        "README.md": b"# model",
        "onnx/model.onnx": b"another format",
        "flax_model.msgpack": b"another format",
    }


@pytest.fixture
def hub(monkeypatch):
    with Hub(files=repository(), large={"model.safetensors"}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        # Small chunks, so that an interrupted small file has a part worth resuming; no pause
        # between retries.
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
        monkeypatch.setattr(
            huggingface_hub.file_download, "time", types.SimpleNamespace(sleep=lambda seconds: None)
        )
        yield server


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "model" / COMMIT / "checkpoint"


def refused(folder: Path, source: HubSource = SOURCE, revision: str = COMMIT) -> str:
    with pytest.raises(InputError) as caught:
        fetch_repository(source, revision, folder)
    assert not folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_fetches_config_tokenizer_and_safetensors_alone(hub, folder):
    fetch_repository(SOURCE, COMMIT, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: hub.files[name] for name in ("config.json", "model.safetensors", "tokenizer.json")
    }
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoint"]


def test_takes_torch_files_only_without_safetensors(hub, folder):
    del hub.files["model.safetensors"]
    fetch_repository(SOURCE, COMMIT, folder)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "pytorch_model.bin",
        "tokenizer.json",
    }


def test_fetches_every_shard_and_the_index(hub, folder):
    del hub.files["model.safetensors"]
    # the index decides what they are called
    shards = ["model.safetensors-00001-of-00002.safetensors", "consolidated-000002.safetensors"]
    stale = {f"model-0000{number}-of-00002.safetensors": b"stale" for number in (1, 2)}
    index = json.dumps({"weight_map": {f"tensor {shard}": shard for shard in shards}}).encode()
    hub.files |= (
        stale
        | {shard: shard.encode() for shard in shards}
        | {"model.safetensors.index.json": index}
    )
    fetch_repository(SOURCE, COMMIT, folder)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        *shards,
    }
    del hub.files[shards[1]]
    assert f"the shard {shards[1]} is missing" in refused(folder.with_name("again"))
    hub.files["model.safetensors.index.json"] = b"{}"
    assert "expected a 'weight_map'" in refused(folder.with_name("without"))


def test_a_refused_configuration_costs_no_weights(hub, folder):
    """Nothing but the listing and config.json is asked for; a later run, with the table corrected,
    does not fetch that again.
    """

    def refuse(keys):
        raise InputError(f"model_type {keys['model_type']} is unknown")

    with pytest.raises(InputError, match="model_type gpt2 is unknown"):
        fetch_repository(SOURCE, COMMIT, folder, refuse)
    assert not folder.exists()
    assert {path.rpartition("/")[2].partition("?")[0] for _, path, _ in hub.requests} == {
        COMMIT,
        "config.json",
    }
    fetch_repository(SOURCE, COMMIT, folder, lambda keys: None)
    assert len(hub.ranges("config.json")) == 1
    assert len(hub.ranges("model.safetensors")) == 1


def test_a_file_beyond_what_the_downloader_takes(hub, folder, monkeypatch):
    def http_get(*_, **__):
        raise ValueError("The file is too large to be downloaded")

    monkeypatch.setattr(hub_module, "http_get", http_get)
    assert (
        "file config.json: The file is too large to be downloaded; use a sharded checkpoint"
        in refused(folder)
    )


def test_replaces_an_older_folder_only_on_success(hub, folder):
    folder.mkdir(parents=True)
    folder.joinpath("old").touch()
    hub.corrupt.add("model.safetensors")
    with pytest.raises(InputError):
        fetch_repository(SOURCE, COMMIT, folder)
    assert [path.name for path in folder.iterdir()] == ["old"]
    hub.corrupt.clear()
    fetch_repository(SOURCE, COMMIT, folder)
    assert not folder.joinpath("old").exists()


def test_missing_repository(hub, folder):
    assert "organisation/other: not found on" in refused(
        folder, HubSource("organisation/other", (COMMIT,))
    )


def test_gated_repository(hub, folder):
    hub.forbidden = True
    assert "gated; accept its terms" in refused(folder)
    # the hub lists a gated repository but keeps its files
    hub.forbidden, hub.gated_files = False, True
    assert "gated; accept its terms" in refused(folder)


def test_private_repository_needs_the_token(hub, folder, monkeypatch):
    hub.token = "secret"
    assert "or private; check the name, or set HF_TOKEN" in refused(folder)
    monkeypatch.setenv("HF_TOKEN", "secret")
    fetch_repository(SOURCE, COMMIT, folder)
    assert folder.joinpath("model.safetensors").read_bytes() == WEIGHTS


def test_unknown_commit(hub, folder):
    assert f"no commit {'f' * 40} there" in refused(folder, revision="f" * 40)


def test_moved_commit(hub, folder):
    hub.answered_commit = "f" * 40
    assert f"asked for commit {COMMIT}, the hub answered with {'f' * 40}" in refused(folder)


def test_no_configuration_and_no_weights(hub, folder):
    config = hub.files.pop("config.json")
    assert "no config.json there" in refused(folder)
    hub.files = {"config.json": config, "flax_model.msgpack": b""}
    assert "no weights there" in refused(folder)


def test_corrupt_large_file_is_named_and_removed(hub, folder):
    hub.corrupt.add("model.safetensors")
    message = refused(folder)
    assert "model.safetensors hashes to" in message
    assert hashlib.sha256(WEIGHTS).hexdigest() in message
    hub.corrupt.clear()
    fetch_repository(SOURCE, COMMIT, folder)


def test_corrupt_git_file_is_named_and_removed(hub, folder):
    hub.corrupt.add("config.json")
    assert re.search("config.json hashes to [0-9a-f]{40}, but the hub's hash", refused(folder))
    hub.corrupt.clear()
    fetch_repository(SOURCE, COMMIT, folder)


def test_pins_hold_against_the_hub_itself(hub, folder):
    pinned = HubSource(
        REPOSITORY,
        (COMMIT,),
        (("config.json", hashlib.sha256(CONFIG).hexdigest()), ("model.safetensors", "0" * 64)),
    )
    assert f"the pinned sha256 is {'0' * 64}" in refused(folder, pinned)
    strange = HubSource(REPOSITORY, (COMMIT,), (("model.safetensor", "0" * 64),))
    assert (
        "the pinned file model.safetensor is not among the files to fetch; did you mean "
        "model.safetensors" in refused(folder, strange)
    )


def test_hub_without_hashes_cannot_be_verified(hub, folder):
    hub.without_hashes = True
    assert "states no size and hash for config.json" in refused(folder)


def test_dropped_connection_is_resumed_within_the_download(hub, folder):
    hub.cut_once["model.safetensors"] = 123_456
    fetch_repository(SOURCE, COMMIT, folder)
    assert hub.ranges("model.safetensors") == [None, "bytes=120000-"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_truncated_body(hub, folder, name):
    hub.cut_at[name] = len(hub.files[name]) // 2
    assert f"file {name}: {hub.endpoint} cannot be reached (RemoteProtocolError)" in refused(folder)


def test_body_shorter_than_listed(hub, folder):
    hub.shortened["model.safetensors"] = 100_000
    assert "received 100000 of 300000 bytes; rerun to resume" in refused(folder)


def test_a_later_run_resumes(hub, folder):
    hub.shortened["model.safetensors"] = 100_000
    refused(folder)
    hub.shortened.clear()
    hub.requests.clear()
    fetch_repository(SOURCE, COMMIT, folder)
    assert hub.ranges("model.safetensors") == ["bytes=100000-"]
    assert hub.ranges("config.json") == []
    assert folder.joinpath("model.safetensors").read_bytes() == WEIGHTS


def test_a_server_that_cannot_resume_sends_the_file_again(hub, folder):
    hub.ignores_range = True
    hub.cut_once["model.safetensors"] = 200_000
    fetch_repository(SOURCE, COMMIT, folder)
    assert folder.joinpath("model.safetensors").read_bytes() == WEIGHTS


def test_a_damaged_part_is_not_kept(hub, folder):
    hub.shortened["model.safetensors"] = 100_000
    refused(folder)
    hub.shortened.clear()
    [part] = folder.parent.glob(f".checkpoint.{COMMIT}.download/model.safetensors")
    part.write_bytes(b"x" * 100_000)
    assert "model.safetensors hashes to" in refused(folder)
    fetch_repository(SOURCE, COMMIT, folder)


def test_parts_too_long_or_of_other_files_are_discarded(hub, folder):
    leftovers = folder.parent / f".checkpoint.{COMMIT}.download"
    leftovers.mkdir(parents=True)
    leftovers.joinpath("model.safetensors").write_bytes(bytes(300_001))
    leftovers.joinpath("pytorch_model.bin").write_bytes(b"a")
    leftovers.joinpath("config.json").mkdir()
    leftovers.joinpath("config.json", "nested").write_bytes(b"a")
    leftovers.joinpath("nowhere").symlink_to(leftovers / "absent")
    fetch_repository(SOURCE, COMMIT, folder)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert folder.joinpath("model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("size", ["x", -1, 2.5, True])
def test_a_listing_whose_sizes_are_no_sizes(hub, folder, size):
    listed = hub.listing()
    for sibling in listed["siblings"]:
        sibling["size"] = size
    hub.listing = lambda: listed
    assert "the hub states no size and hash for config.json" in refused(folder)


def test_a_killed_download_resumes(hub, folder):
    hub.stall_at["model.safetensors"] = 200_000
    script = (
        "import huggingface_hub.constants; huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 65536\n"
        "from normgauge.checkpoints.hub import fetch_repository\n"
        "from normgauge.checkpoints.sources import HubSource\n"
        f"fetch_repository(HubSource({REPOSITORY!r}, ({COMMIT!r},)), {COMMIT!r}, {str(folder)!r})"
    )
    library = str(Path(hub_module.__file__).parents[2])
    child = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": library}
    )
    part = folder.parent / f".checkpoint.{COMMIT}.download" / "model.safetensors"
    try:
        assert hub.stalled.wait(60)
        while part.stat().st_size < 131_072:  # what was sent may still be on its way to the disk
            assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not folder.exists()
    hub.stall_at.clear()
    hub.requests.clear()
    kept = part.stat().st_size
    fetch_repository(SOURCE, COMMIT, folder)
    assert hub.ranges("model.safetensors") == [f"bytes={kept}-"]
    assert folder.joinpath("model.safetensors").read_bytes() == WEIGHTS


def test_a_file_that_vanished(hub, folder):
    hub.vanished.add("tokenizer.json")
    assert "file tokenizer.json" in refused(folder)


def test_rejected_token(hub, folder, monkeypatch):
    hub.token = "secret"
    monkeypatch.setenv("HF_TOKEN", "expired")
    assert "rejects the token; correct or unset HF_TOKEN" in refused(folder)


def test_server_error(hub, folder):
    hub.status = 500
    assert "answered 500" in refused(folder)


def test_an_endpoint_that_is_no_hub(hub, folder):
    hub.prose = True
    assert "does not answer like a model hub" in refused(folder)


def test_no_hub_in_reach(folder, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached (ConnectError)" in refused(folder)


def test_offline_mode(hub, folder, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "offline mode is set" in refused(folder)


def test_disk_space_is_checked_before_the_download(hub, folder, monkeypatch):
    monkeypatch.setattr(layout.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1000))
    assert "needs 0.00 GB" in refused(folder)
    assert hub.ranges("config.json") == []


def test_progress_is_reported_per_file(hub, folder, capsys):
    fetch_repository(SOURCE, COMMIT, folder)
    assert "download model.safetensors (bytes): 300000/300000 (100 %)" in capsys.readouterr().err


def test_a_reply_that_is_longer_than_the_hub_states_is_cut(hub, folder):
    hub.longer = {"model.safetensors", "config.json"}
    fetch_repository(SOURCE, COMMIT, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()}[
        "model.safetensors"
    ] == hub.files["model.safetensors"]


def test_a_longer_reply_of_other_content_is_refused(hub, folder):
    hub.longer = hub.corrupt = {"model.safetensors"}
    assert "hashes to" in refused(folder)
    assert all(
        path.stat().st_size <= len(hub.files[path.name])
        for path in folder.parent.rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize("fault", ["status", "prose", "cut_at", "forbidden", "closed"])
def test_user_and_password_of_the_endpoint_are_never_printed(
    hub, folder, monkeypatch, capfd, fault
):
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint.replace("://", "://someone:s3cret@"))
    values = {"status": 500, "prose": True, "forbidden": True, "cut_at": {"model.safetensors": 5}}
    if fault == "closed":
        monkeypatch.setenv("HF_ENDPOINT", "http://someone:s3cret@127.0.0.1:9")
    else:
        setattr(hub, fault, values[fault])
    said = refused(folder) + capfd.readouterr().err
    assert "s3cret" not in said
    assert "someone" not in said
