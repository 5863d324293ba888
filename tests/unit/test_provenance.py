"""Atomic writes leave nothing behind; the code hash sees exactly the import closure."""

import ast
import errno
import os
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from normgauge import provenance
from normgauge.errors import InputError
from normgauge.provenance import atomic_path, code_hash, import_closure, sha256_file


def test_atomic_file_replaces_only_on_success(tmp_path):
    target = tmp_path / "folder" / "file.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("first")
        assert not target.exists()
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "first"
    assert [path.name for path in target.parent.iterdir()] == ["file.txt"]


def test_atomic_folder_replaces_an_older_one(tmp_path):
    target = tmp_path / "folder"
    for content in ("old", "new"):
        with atomic_path(target) as temporary:
            temporary.mkdir()
            (temporary / content).touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
    ],
    ids=["system", "safetensors"],
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, error):
    with (
        pytest.raises(InputError, match=r"disk full while writing .*file\.bin: free"),
        atomic_path(tmp_path / "file.bin") as temporary,
    ):
        temporary.write_bytes(b"half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_sha256_of_known_bytes(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize("secret", ["user:word", "token", "us%40er:w@rd", "user:"])
def test_no_message_holds_the_credentials_of_a_url(secret):
    said = str(
        InputError(
            f"model: http://{secret}@hub.example:80/a@b answered 500, see https://hub.example"
        )
    )
    assert said == "model: http://hub.example:80/a@b answered 500, see https://hub.example"


def test_error_messages_are_one_line():
    assert str(InputError("two\n   lines")) == "two lines"


KILLED = """
import os, sys
from normgauge.provenance import atomic_path
with atomic_path(sys.argv[1]) as temporary:
    temporary.mkdir() if sys.argv[2] == "folder" else temporary.write_text("half", encoding="utf-8")
    os._exit(9)
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_killed_writer_left_is_gone_after_the_next(tmp_path, kind):
    environment = {**os.environ, "PYTHONPATH": str(provenance.LIBRARY.parent)}
    assert (
        subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path / "out"), kind], env=environment
        ).returncode
        == 9
    )
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_path(tmp_path / "out") as temporary:
        assert list(tmp_path.iterdir()) == []
        temporary.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_two_writers_of_one_path_share_nothing(tmp_path, monkeypatch):
    """A job that outlived its run, and the one that was started in its place."""
    with atomic_path(tmp_path / "out") as first:
        first.write_text("the older job's")
        monkeypatch.setattr(os, "getpid", os.getppid)  # another process, which lives
        with atomic_path(tmp_path / "out") as second:
            second.write_text("the newer job's")
            assert first.read_text() == "the older job's"
        assert (tmp_path / "out").read_text() == "the newer job's"
        monkeypatch.undo()
    assert (tmp_path / "out").read_text() == "the older job's"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A small package in the library's place: script -> a.one -> b; c is not imported."""
    root = tmp_path / "normgauge"
    for room in ("a", "b"):
        (root / room).mkdir(parents=True)
        (root / room / "__init__.py").write_text("")
    (root / "__init__.py").write_text("")
    (root / "a" / "one.py").write_text("def f():\n    from normgauge.b import x\n")
    (root / "b" / "x.py").write_text("")
    (root / "c.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text("from normgauge.a import one\nimport helper\n")
    (tmp_path / "helper.py").write_text("")
    monkeypatch.setattr(provenance, "LIBRARY", root)
    return root, script


def test_closure_follows_imports_inside_functions_and_packages(library):
    root, script = library
    names = {str(path.relative_to(root.parent)) for path in import_closure(script)}
    assert names == {
        "script.py",
        "helper.py",
        "normgauge/__init__.py",
        "normgauge/a/__init__.py",
        "normgauge/a/one.py",
        "normgauge/b/__init__.py",
        "normgauge/b/x.py",
    }


@pytest.mark.parametrize(
    "around",
    [
        "class C:\n    {}",
        "if 0:\n    pass\nelif 1:\n    {}",
        "for _ in ():\n    pass\nelse:\n    {}",
        "with open('f'):\n    {}",
        "try:\n    pass\nexcept ValueError:\n    {}",
        "try:\n    pass\nfinally:\n    {}",
        "match 1:\n    case 1:\n        {}",
        "async def f():\n    while 1:\n        {}",
    ],
)
def test_closure_follows_imports_inside_every_statement(library, around):
    root, script = library
    script.write_text(around.format("import normgauge.c") + "\n")
    assert import_closure(script) == sorted([script, root / "__init__.py", root / "c.py"])


def test_closures_of_many_scripts_parse_each_module_once(library, tmp_path, monkeypatch):
    _, script = library
    other = tmp_path / "other.py"
    other.write_text("from normgauge.a import one\n")
    parsed, parse = [], ast.parse
    monkeypatch.setattr(
        ast, "parse", lambda text, filename: parsed.append(filename) or parse(text, filename)
    )
    closures = [import_closure(each) for each in (script, other, script)]
    assert closures[0] == closures[2]
    assert sorted(parsed) == sorted(str(path) for path in {*closures[0], other})


@pytest.mark.parametrize(
    ("edited", "changes"), [("b/x.py", True), ("a/one.py", True), ("c.py", False)]
)
def test_code_hash_changes_exactly_with_what_is_imported(library, edited, changes):
    root, script = library
    before = code_hash(script)
    path = root / edited
    path.write_text(path.read_text() + "# edited\n")
    assert (code_hash(script) != before) == changes
