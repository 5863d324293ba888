"""Write the pages of the library and of the command, from docstrings and from the parser.

python docs/tools/reference.py OUT
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import normgauge
from normgauge.command import VERBS
from normgauge.command import main as command


def library_page() -> str:
    """Every public name with its signature and docstring."""
    names = [name for name in normgauge.__all__ if not name.startswith("_")]
    head = (normgauge.__doc__ or "").split("\n\n    >>>")[0]
    parts = ["# The library", head, *(_entry(name, getattr(normgauge, name)) for name in names)]
    return "\n\n".join(parts) + "\n"


def _entry(name: str, value: Any) -> str:
    docstring, _, example = (inspect.getdoc(value) or "").partition("\n\n>>>")
    signature = name if isinstance(value, type) else _signature(name, inspect.signature(value))
    shown = f"## {name}\n\n```python\nnormgauge.{signature}\n```\n\n{_quiet(docstring)}"
    return f"{shown}\n\n```pycon\n>>>{example}\n```" if example else shown


def _signature(name: str, signature: inspect.Signature) -> str:
    """The signature, a parameter a line where it is long, and annotations without quotation marks."""
    text = f"{name}{signature}"
    if len(text) > 90:
        parameters = [f"    {each},\n" for each in signature.parameters.values()]
        named = [each.kind == each.KEYWORD_ONLY for each in signature.parameters.values()]
        if any(named):
            parameters.insert(named.index(True), "    *,\n")
        text = f"{name}(\n{''.join(parameters)}) -> '{signature.return_annotation}'"
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _quiet(docstring: str) -> str:
    """Text in which the underscores of names are not emphasis."""
    return re.sub(r"(?<![`\w])(\w+_\w*|_\w+)(?![`\w])", r"`\1`", docstring)


def command_page() -> str:
    """`normgauge --help`, and the help of every verb."""
    parts = ["# The command", f"```text\n{_help()}\n```"]
    parts += [f"## normgauge {verb}\n\n```text\n{_help(verb)}\n```" for verb in [*VERBS, "gauge"]]
    return "\n\n".join(parts) + "\n"


def _help(*arguments: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        command([*arguments, "--help"])
    return said.getvalue().rstrip()


if __name__ == "__main__":
    os.environ["COLUMNS"] = "88"
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    (out / "library.md").write_text(library_page(), encoding="utf-8")
    (out / "command.md").write_text(command_page(), encoding="utf-8")
