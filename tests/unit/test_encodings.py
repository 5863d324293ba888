"""Text is UTF-8 wherever it is read or written, whatever the locale of the machine."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*ROOT.glob("workflow/**/*.py"), *ROOT.glob("benchmarks/*.py")]
# A locale of ASCII alone. Python would choose UTF-8 of its own accord where LC_ALL is C, but not in
# every other locale.
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PLACE_OF_MODE = {"open": 1, "fdopen": 1, "NamedTemporaryFile": 0}
NOT_TEXT = {"os.open", "Image.open", "archive.open", "wave.open", "tarfile.open"}


def leaves_the_encoding_to_the_locale(call: ast.Call) -> bool:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    name = ast.unparse(call.func).rsplit(".")[-1]
    if "encoding" in keywords:
        return False
    if name == "read_text":
        return not call.args
    if name == "write_text":
        return len(call.args) < 2
    if name in ("run", "Popen", "check_output"):
        return bool({"text", "universal_newlines"} & keywords.keys())
    if name not in PLACE_OF_MODE or ast.unparse(call.func) in NOT_TEXT:
        return False
    place = PLACE_OF_MODE[name] - (name == "open" and isinstance(call.func, ast.Attribute))
    mode = keywords.get("mode", call.args[place] if len(call.args) > place else None)
    binary = mode is None and name == "NamedTemporaryFile"
    return not (binary or (isinstance(mode, ast.Constant) and "b" in str(mode.value)))


def unnamed(source: str) -> list[int]:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if leaves_the_encoding_to_the_locale(call)]


@pytest.mark.parametrize(
    "call",
    [
        "open(path)",
        "open(path, 'w')",
        "open(path, mode='a')",
        "path.open()",
        "path.open('w')",
        "path.read_text()",
        "path.write_text(text)",
        "os.fdopen(handle, 'w')",
        "subprocess.run(command, text=True)",
        "tempfile.NamedTemporaryFile('w')",
    ],
)
def test_the_search_finds_each_way_of_leaving_it_out(call: str) -> None:
    assert unnamed(call) == [1]
    named = (
        call[:-1] + (", " if "(" in call and not call.endswith("()") else "") + "encoding='utf-8')"
    )
    assert unnamed(named) == []


@pytest.mark.parametrize(
    "call", ["open(path, 'rb')", "path.open('wb')", "os.open(path, 0)", "subprocess.run(command)"]
)
def test_bytes_have_no_encoding(call: str) -> None:
    assert unnamed(call) == []


def test_every_text_file_names_its_encoding() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in unnamed(path.read_text(encoding="utf-8"))
    ]
    assert found == []


PROGRAM = """
import sys
from pathlib import Path
from normgauge.tables import STRING, Tables, schema
from normgauge.verbs.tokens import documents_in
folder = Path(sys.argv[1])
rows = [{"token": text} for text in documents_in(folder / "texts.jsonl")]
tables = Tables({"words": schema(("token", STRING, "!a token"))})
tables.write_csv(folder / "words.csv", "words", rows)
"""


def test_text_beyond_ascii_passes_through_an_ascii_locale(tmp_path: Path) -> None:
    words = ["caf\u00e9", "\u4e2d\u6587"]
    lines = "".join(json.dumps({"text": word}, ensure_ascii=False) + "\n" for word in words)
    (tmp_path / "texts.jsonl").write_bytes(lines.encode())
    environment = {**os.environ, **ASCII_LOCALE, "PYTHONPATH": str(ROOT / "workflow")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "words.csv").read_bytes().decode() == "".join(
        f"{line}\n" for line in ("token", *words)
    )
