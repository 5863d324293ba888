"""What the strict build of the site would refuse, and file names in prose, without building it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "config/README.md",
    "benchmarks/README.md",
)
PAGES = [*(ROOT / name for name in OUTSIDE), *sorted((ROOT / "docs").rglob("*.md"))]
OF_OTHERS = {"plain_text_readers_bible.py"}
"""Files of packages that the prose names."""

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:|#|<)([^)\s#]+)")
_SOURCE = re.compile(r"`([\w./-]+\.(?:py|smk|sh))(?:::\w+)?`")


def text_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def broken_links(page: Path, text: str) -> list[str]:
    return [target for target in _LINK.findall(text) if not (page.parent / target).exists()]


def missing_files(text: str, files: set[str]) -> list[str]:
    """Names of sources in code marks that end no path of the repository."""
    return [
        name
        for name in _SOURCE.findall(text)
        if name not in OF_OTHERS and not any(f"/{path}".endswith(f"/{name}") for path in files)
    ]


def sources() -> set[str]:
    folders = (ROOT / name for name in ("workflow", "tests", "docs", "benchmarks", "profiles"))
    return {
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".py", ".smk", ".sh")
    }


def not_in_navigation(navigation: str) -> set[str]:
    named = set(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return pages - named


def test_each_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not not_in_navigation(navigation)
    assert not_in_navigation(navigation.replace("design/ledger.md", "")) == {"design/ledger.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_files_named_in_prose_exist(page):
    text = text_of(page)
    assert not broken_links(page, text)
    assert not missing_files(text, sources())


def test_a_planted_fault_is_found():
    assert broken_links(ROOT / "README.md", "[a](docs/absent.md), [b](docs/data.md#x)") == [
        "docs/absent.md"
    ]
    assert missing_files("`gauge/outputs.py`, `transport/outputs.py`, `_script.py`", sources()) == [
        "gauge/outputs.py"
    ]
