"""What MkDocs does not do by itself: pages from outside docs/, their links, and mathematics without JavaScript."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "build/pages"
"""Written by notebooks.py and reference.py."""
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "config/README.md", "benchmarks/README.md")

_LINK = re.compile(r"(\]\()(?!\w+:|#|<)([^)\s#]+)")
_FENCE = re.compile(r"^( *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"<!--/?q\b.*?-->", re.DOTALL)
"""Marks of quoted numbers; at the start of a line Python-Markdown would take one for a block."""
_MATHS = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the repository's pages, what they link to, and the generated pages."""
    if not GENERATED.is_dir():
        raise PluginError(
            f"{GENERATED.relative_to(ROOT)} is missing; `make site` writes it before it calls mkdocs"
        )
    for path in sorted(GENERATED.rglob("*")):
        if path.is_file():
            files.append(
                File.generated(
                    config, path.relative_to(GENERATED).as_posix(), abs_src_path=str(path)
                )
            )
    linked = set()
    for page in [*(ROOT / name for name in PAGES), *(ROOT / "docs").rglob("*.md")]:
        for _, target in _LINK.findall(page.read_text(encoding="utf-8")):
            linked.add(Path(os.path.normpath(page.parent / target)))
    outside = {
        path.relative_to(ROOT)
        for path in linked
        if path.is_file() and ROOT / "docs" not in path.parents
    }
    for name in sorted({path.as_posix() for path in outside if path.suffix != ".md"} | set(PAGES)):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site has them: docs/ and the repository's root are one folder there."""
    here = page.file.src_uri
    stored = Path(here) if here in PAGES else Path("docs", here)

    def moved(match: re.Match[str]) -> str:
        target = os.path.normpath(stored.parent / match[2])
        return match[1] + os.path.relpath(target.removeprefix("docs/"), Path(here).parent)

    parts = _FENCE.split(_QUOTED.sub("", markdown))
    parts[::2] = [_spaced(_LINK.sub(moved, part)) for part in parts[::2]]
    return "".join(parts)


def _spaced(text: str) -> str:
    """An empty line before a list, which Python-Markdown needs and GitHub does not."""
    return re.sub(r"^((?![-*>|#]|\d+\.| ).+\n)(?=(?:- |1\. ))", r"\1\n", text, flags=re.MULTILINE)


def on_page_content(content: str, **_: Any) -> str:
    """TeX as MathML, which browsers draw by themselves."""
    return _MATHS.sub(
        lambda match: convert(
            html.unescape(match[2]), display="block" if match[1] == "div" else "inline"
        ),
        content,
    )
