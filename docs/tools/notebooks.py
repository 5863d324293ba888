"""Run the tutorials and notebooks of the documentation and write them as Markdown, with what each cell printed and drew.

    python docs/tools/notebooks.py OUT [NAME ...]

A notebook is a Python script in the percent format of Jupyter and jupytext: `# %% [markdown]` begins text, `# %%` code,
and `# %% language="bash"` commands, which stand in comments so that the script also runs as it is. Only this subset is
read, and of commands only `normgauge`, which is called in this process: it would load torch again for each. A cell that
fails ends the run with its traceback.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "svg")

DOCS = Path(__file__).parents[1]
FOLDERS = ("tutorials", "notebooks")


@dataclass(frozen=True)
class Cell:
    kind: str
    """markdown, python or bash"""
    source: str
    line: int
    """of the script at which the source begins, from 0"""


def scripts() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((DOCS / folder).glob("*.py"))]


def cells_of(text: str) -> list[Cell]:
    """The cells of a script in percent format. What stands before the first mark is dropped."""
    found, lines = [], text.splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    for start, end in zip(marks, [*marks[1:], len(lines)], strict=True):
        mark, body = lines[start], lines[start + 1 : end]
        kind = (
            "markdown"
            if "[markdown]" in mark
            else "bash"
            if 'language="bash"' in mark
            else "python"
        )
        if kind != "python":
            body = [re.sub(r"^# ?", "", line) for line in body]
        found.append(Cell(kind, "\n".join(body).strip("\n"), start + 1))
    return found


def run_notebook(script: Path, out: Path) -> Path:
    """Run a script's cells in an empty folder; writes OUT/NAME.md, and its figures beside it as NAME-N.svg."""
    from matplotlib import pyplot

    out.mkdir(parents=True, exist_ok=True)
    space: dict[str, Any] = {"__name__": "__main__"}
    pages: list[str] = []
    figures = 0
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in cells_of(script.read_text(encoding="utf-8")):
                if cell.kind == "markdown":
                    pages.append(cell.source)
                    continue
                printed, value = _run_cell(cell, space, script)
                pages.append(f"```{cell.kind}\n{cell.source}\n```")
                if printed:
                    pages.append(f"```text\n{printed}\n```")
                if value is not None and not pyplot.get_fignums():
                    pages.append(_shown(value))
                for number in pyplot.get_fignums():
                    figures += 1
                    name = f"{script.stem}-{figures}.svg"
                    pyplot.figure(number).savefig(
                        out / name, metadata={"Date": None}, bbox_inches="tight"
                    )
                    pages.append(f"![Figure {figures}]({name})")
                pyplot.close("all")
        finally:
            os.chdir(here)
            pyplot.close("all")
    page = out / f"{script.stem}.md"
    page.write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    return page


def _run_cell(cell: Cell, space: dict[str, Any], script: Path) -> tuple[str, Any]:
    """What a cell printed, and the value of its last line where that is an expression."""
    if cell.kind == "bash":
        return _run_commands(cell, script), None
    tree = ast.parse("\n" * cell.line + cell.source, str(script))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(script), "exec"), space)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(script), "eval"), space)
    return printed.getvalue().rstrip(), value


def _run_commands(cell: Cell, script: Path) -> str:
    from normgauge.command import main as command

    printed = io.StringIO()
    for line in cell.source.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        with contextlib.redirect_stdout(printed):
            status = command(arguments) if program == "normgauge" else 1
        if status:
            raise RuntimeError(
                f"{script.name}, line {cell.line}: {line}: status {status}\n{printed.getvalue()}"
            )
    return printed.getvalue().rstrip()


def _shown(value: Any) -> str:
    """A table as HTML, all else as text."""
    if hasattr(value, "to_html"):
        return value.to_html(border=0, float_format="{:.4g}".format)
    return f"```text\n{value!r}\n```"


def main(arguments: list[str]) -> None:
    out, names = Path(arguments[0]).resolve(), arguments[1:]
    for script in scripts():
        if not names or script.stem in names:
            print(run_notebook(script, out / script.parent.name))


if __name__ == "__main__":
    main(sys.argv[1:])
