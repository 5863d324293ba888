"""The documentation: its tutorials and notebooks run, and the built site is read in a real
browser.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import CHROMIUM, DRIVER, Browser, browsing
from clone import ROOT

sys.path.insert(0, str(ROOT / "docs" / "tools"))

from notebooks import Cell, cells_of, run_notebook, scripts
from reference import command_page, library_page

MKDOCS = ROOT / ".venv-site" / "bin" / "mkdocs"
STUDIES = {
    "dead_directions",
    "exact_recovery",
    "signed_permutation",
    "redundancy",
    "checkpoint_comparison",
}
TUTORIALS = {"your_model_in_five_minutes", "align_before_you_merge", "is_this_neuron_a_name"}


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the site is made from, to which each test of a script adds its page."""
    copy = tmp_path_factory.mktemp("site")
    for name in os.listdir(ROOT):
        if name not in ("build", ".git", "results", "figures", ".snakemake"):
            (copy / name).symlink_to(ROOT / name)
    (copy / "docs").unlink()
    subprocess.run(["cp", "-r", str(ROOT / "docs"), str(copy / "docs")], check=True)
    generated = copy / "build" / "pages"
    generated.mkdir(parents=True)
    (generated / "library.md").write_text(library_page())
    (generated / "command.md").write_text(command_page())
    return generated


def test_each_study_has_a_notebook() -> None:
    assert {path.stem for path in scripts()} == STUDIES | TUTORIALS


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_a_script_runs_as_its_reader_would(script: Path, pages: Path) -> None:
    """Its own assertions hold what its text says; a page with outputs is written."""
    cells = cells_of(script.read_text())
    assert 5 <= len(cells) <= 20
    text = run_notebook(script, pages / script.parent.name).read_text()
    assert "```text" in text
    assert all(cell.source in text for cell in cells)


def test_a_cell_that_fails_fails_the_notebook(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("# %% [markdown]\n# # Title\n# %%\nassert 1 + 1 == 3\n")
    with pytest.raises(AssertionError):
        run_notebook(script, tmp_path / "out")
    script.write_text(
        '# %% language="bash"\n# normgauge fingerprint nowhere    # the reader\'s comment\n'
    )
    with pytest.raises(RuntimeError, match="status 1"):
        run_notebook(script, tmp_path / "out")
    assert not (tmp_path / "out" / "broken.md").exists()


def test_cells_are_split_by_kind() -> None:
    cells = cells_of(
        '# %% [markdown]\n# # Title\n#\n# Text\n# %%\nx = 1\n\n# %% language="bash"\n# normgauge '
        "--version\n"
    )
    assert cells == [
        Cell("markdown", "# Title\n\nText", 1),
        Cell("python", "x = 1", 5),
        Cell("bash", "normgauge --version", 8),
    ]


def test_every_public_name_is_in_the_reference() -> None:
    import normgauge

    headings = re.findall(r"^## (\w+)$", library_page(), re.MULTILINE)
    assert headings == [name for name in normgauge.__all__ if not name.startswith("_")]


def built(pages: Path) -> Path:
    """The site, built once; strict: a link that leads nowhere fails."""
    root = pages.parents[1]
    site = root / "build" / "site"
    if not site.exists():
        ended = subprocess.run(
            [str(MKDOCS), "build", "--strict"], cwd=root, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return site


@pytest.mark.skipif(not MKDOCS.exists(), reason="mkdocs is not installed: `make .venv-site/ready`")
@pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium and chromedriver are not installed: the site goes unseen",
)
def test_tutorial_mathematics_and_search_work_in_a_browser(pages: Path, tmp_path: Path) -> None:
    site = built(pages)
    loaded = re.compile(
        r'<(?:script|link rel="stylesheet"|img)[^>]*(?:src|href)="?(https?://[^" >]+)'
    )
    assert {
        found for page in site.rglob("*.html") for found in loaded.findall(page.read_text())
    } == set()
    with browsing(tmp_path / "profile") as browser:
        browser.open((site / "tutorials" / "your_model_in_five_minutes.html").as_uri())
        browser.wait_for(
            "document.querySelector('h1')?.innerText.startsWith('Your model in five minutes')"
        )
        assert browser.evaluate(
            "[...document.images].every(image => image.complete && image.naturalWidth > 200)"
        )
        formula = browser.evaluate(
            "JSON.parse(JSON.stringify(document.querySelector('math[display=block]').getBoundingClientRect()))"
        )
        fraction = browser.evaluate(
            "document.querySelector('math[display=block] mfrac').getBoundingClientRect().height"
        )
        assert formula["width"] > 100
        assert fraction > 25, "numerator and denominator do not stand above each other"
        assert "\\sum" not in browser.evaluate("document.body.innerText")
        assert_found(browser, "Schur", "statistics")
        browser.screenshot(tmp_path / "site.png")


def assert_found(browser: Browser, word: str, page: str) -> None:
    """The search finds a word on a page."""
    browser.click_until(
        "document.querySelector('.md-search__input')", "document.activeElement.name === 'query'"
    )
    browser.evaluate(
        f"(document.activeElement.value = '{word}', document.activeElement.dispatchEvent(new "
        "Event('keyup')), 1)"
    )
    browser.wait_for(
        "[...document.querySelectorAll('.md-search-result__link')].some(link => "
        f"link.href.includes('{page}'))",
        seconds=30,
    )
