"""The frame around every script: one-line errors, the log, the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clone import ROOT

FRAME = """
import sys
from types import SimpleNamespace
sys.path[:0] = [{workflow!r}, {scripts!r}]
from _script import reporting
from normgauge.errors import InputError
with reporting(SimpleNamespace(log=[{log!r}], threads=3){online}):
    import os
    print("working", file=sys.stderr)
    print(os.environ["HF_HUB_OFFLINE"], os.environ["OMP_NUM_THREADS"])
    {body}
"""


def run(
    log: Path, body: str, online: str = "", answer: str | None = None
) -> subprocess.CompletedProcess[str]:
    program = FRAME.format(
        workflow=str(ROOT / "workflow"),
        scripts=str(ROOT / "workflow/scripts"),
        log=str(log),
        body=body,
        online=online,
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, input=answer
    )


def test_bad_input_is_one_line_in_the_terminal_and_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "job.log"
    done = run(log, 'raise InputError("x.json: no key a;\\n add it")')
    assert done.returncode == 1
    assert done.stderr == "working\nerror: x.json: no key a; add it\n" == log.read_text()


def test_a_defect_keeps_its_traceback_in_both(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    done = run(log, "raise KeyError('a')")
    assert done.returncode == 1
    for text in (done.stderr, log.read_text()):
        assert text.count("Traceback") == 1
        assert "KeyError: 'a'" in text


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path / "job.log", "open('/dev/full', 'w', buffering=1).write('x\\n')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["error: disk full: free space and rerun"]


def test_what_a_name_may_hold_reaches_no_terminal(tmp_path: Path) -> None:
    """Escape sequences, lone surrogates and directional marks are shown by their escapes, accents
    as they are.
    """
    log = tmp_path / "job.log"
    body = r"""raise InputError("caf\u00e9 \x1b[31m \udc80 \u202e \x07 end")"""
    done = run(log, body)
    assert done.returncode == 1
    assert (
        done.stderr
        == "working\nerror: caf\u00e9 \\x1b[31m \\udc80 \\u202e \\x07 end\n"
        == log.read_text(encoding="utf-8")
    )


def test_a_message_is_cut_and_keeps_both_ends(tmp_path: Path) -> None:
    done = run(
        tmp_path / "job.log", "raise InputError('x.json: key ' + 'a' * 10**6 + ' is long; cut it')"
    )
    line = done.stderr.splitlines()[1]
    assert len(line) == len("error: ") + 500
    assert line.startswith("error: x.json: key aaa")
    assert line.endswith("aaa is long; cut it")


def test_a_log_without_room_does_not_hide_the_error(tmp_path: Path) -> None:
    done = run(Path("/dev/full"), "raise InputError('x.json: no key a')")
    assert done.returncode == 1
    assert done.stderr == "working\nerror: x.json: no key a\n"
    (tmp_path / "file").touch()
    # no folder can be made there
    done = run(tmp_path / "file" / "job.log", "raise InputError('x.json: no key a')")
    assert done.stderr.endswith("working\nerror: x.json: no key a\n")
    assert run(Path("/dev/full"), "pass").returncode == 0


def test_a_panic_of_a_library_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    done = run(log, "raise type('PanicException', (BaseException,), {})('gone')")
    assert done.returncode == 1
    assert "PanicException: gone" in log.read_text()


def test_scripts_are_offline_unless_they_fetch(tmp_path: Path) -> None:
    assert run(tmp_path / "a.log", "pass").stdout == "1 3\n"
    assert run(tmp_path / "b.log", "pass", ", online=True").stdout == "0 3\n"


def test_nothing_that_is_asked_is_answered(tmp_path: Path) -> None:
    """Neither in the job nor in a process that it starts, whatever waits on the stdin of the
    caller.
    """
    child = "import sys; print(repr(sys.stdin.read()))"
    body = (
        "import subprocess; print(repr(sys.stdin.read()), flush=True); "
        f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    assert run(tmp_path / "a.log", body, answer="y\n").stdout.splitlines()[1:] == ["''", "''"]


def test_garbage_is_collected_once_the_library_is_loaded(tmp_path: Path) -> None:
    look = (
        "import gc; from _script import set_arithmetic; print(gc.isenabled()); "
        "set_arithmetic(1); print(gc.isenabled())"
    )
    assert run(tmp_path / "a.log", look).stdout.splitlines()[1:] == ["False", "True"]


def test_scripts_call_the_library_and_hold_no_science() -> None:
    scripts = sorted((ROOT / "workflow/scripts").glob("[a-z]*.py"))
    assert len(scripts) >= 10
    for script in scripts:
        text = script.read_text()
        assert len(text.splitlines()) < 50, script.name
        assert script.name == "pin_revisions.py" or "with reporting(snakemake" in text, script.name
