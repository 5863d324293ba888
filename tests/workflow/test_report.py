"""The HTML report, opened in a real browser: every figure is seen, every caption can be read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
from PIL import Image

from browser import CHROMIUM, DRIVER, Browser, browsing
from normgauge.render.drawing import draw
from normgauge.render.tabulating import write_table
from result_samples import STUDY, write_results

if TYPE_CHECKING:
    from clone import Project

ROOT = Path(__file__).parents[2]
CAPTIONS = ROOT / "workflow" / "report"
TARGETS = ("table1", "table2", "trained_vs_random", "figure3", "figure6")
HEADLINES = dict(re.findall(r'\("([^"]+)", "([^"]+)"\),', (CAPTIONS / "workflow.rst").read_text()))
"""Study -> how the name of the figure that the report opens with ends."""

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium and chromedriver are not installed: the report goes unseen",
)


def caption_heading(name: str) -> str:
    """The bold words that a caption begins with."""
    found = re.match(r"\*\*(.+?)\*\*", (CAPTIONS / f"{name}.rst").read_text(), re.DOTALL)
    assert found, name
    return " ".join(found.group(1).split())


def assert_readable(browser: Browser, report: Path, screenshots: Path) -> set[str]:
    """Go through the report as a reader does: each category, each row, its picture and its caption.
    The names of the targets seen.
    """
    browser.open(report.as_uri())
    browser.wait_for("document.body.innerText.includes('knowable')")
    seen = set()
    categories = browser.evaluate("Object.keys(categories)")
    for category in categories:
        entry = json.dumps(category if len(categories) > 1 else "Results")
        for row in range(
            browser.evaluate(f"Object.values(categories[{json.dumps(category)}]).flat().length")
        ):
            browser.click("document.querySelector('nav ol a')")
            browser.click(
                "[...document.querySelectorAll('nav li a')].find(link => link.innerText.trim() "
                f"=== {entry})"
            )
            picture = browser.click_until(
                f"document.querySelectorAll('tbody tr')[{row}]?.querySelectorAll('a')[0]",
                "(() => { const image = [...document.images].find(each => each.src === "
                "results[app.state.resultPath]?.data_uri);"
                " return image && image.complete && image.naturalWidth > 300 && "
                "image.naturalHeight > 100"
                " && JSON.parse(JSON.stringify(image.getBoundingClientRect())); })()",
            )
            name = Path(browser.evaluate("app.state.resultPath")).stem.replace("-", "_")
            browser.screenshot(screenshots / f"{name}.png")
            assert_drawn(
                screenshots / f"{name}.png", picture, browser.evaluate("window.innerWidth")
            )
            browser.click(f"document.querySelectorAll('tbody tr')[{row}].querySelectorAll('a')[1]")
            browser.wait_for(
                "document.body.innerText.replace(/\\s+/g, ' "
                f"').includes({json.dumps(caption_heading(name))})"
            )
            seen.add(name)
    return seen


def assert_opening(browser: Browser, report: Path, screenshot: Path) -> None:
    """The first page shows the study's figure and its caption within the first window, and the
    graph of the rules after them.
    """
    browser.open(report.as_uri())
    browser.wait_for("document.body.innerText.includes('knowable')")
    box = browser.wait_for(
        "(() => { const drawn = document.querySelector('.prose svg');"
        " return drawn && JSON.parse(JSON.stringify(drawn.getBoundingClientRect())); })()"
    )
    assert box["width"] > 500
    assert box["top"] < browser.evaluate("window.innerHeight") / 2
    below = "document.querySelector('#rulegraph').getBoundingClientRect().top"
    assert browser.evaluate(below) > box["bottom"]
    heading = json.dumps(caption_heading("figure3"))
    assert browser.evaluate(
        f"document.querySelector('.prose').innerText.replace(/\\s+/g, ' ').includes({heading})"
    )
    browser.screenshot(screenshot)
    assert_drawn(screenshot, box, browser.evaluate("window.innerWidth"))


def assert_drawn(screenshot: Path, box: dict[str, float], window: float) -> None:
    """The part of the window that the picture takes shows ink, neither blank nor solid."""
    image = Image.open(screenshot).convert("L")
    scale = image.width / window
    left, top = max(box["left"], 0) * scale, max(box["top"], 0) * scale
    shown = numpy.asarray(
        image.crop(
            (
                int(left),
                int(top),
                int(min(box["right"] * scale, image.width)),
                int(min(box["bottom"] * scale, image.height)),
            )
        )
    )
    assert shown.shape[0] > 100
    assert shown.shape[1] > 300
    ink = (shown < 128).mean()
    assert 0.002 < ink < 0.5, f"{screenshot.name}: {ink:.4f} of the picture is dark"


PUBLISHED = ROOT / "config" / "published" / "dead_directions.yaml"


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """A workflow that only puts drawings of made-up results into a report with this project's
    captions.
    """
    inputs = write_results(
        tmp_path / "results",
        [sample for sample in STUDY if sample.model in ("gpt2-nano", "smollm2-135m")],
    )
    lines = [
        f"report: {str(CAPTIONS / 'workflow.rst')!r}",
        "rule all:",
        f"    input: expand('figures/{{name}}.svg', name={list(TARGETS)})",
    ]
    for name in TARGETS:
        write_table(
            name,
            {
                "measured": inputs,
                "published": [ROOT / "config" / "published" / "dead_directions.yaml"],
            },
            tmp_path / f"{name}.parquet",
            tmp_path / f"{name}.csv",
        )
        draw(name, tmp_path / f"{name}.parquet", [tmp_path / "drawn" / f"{name}.svg"])
        caption = str(CAPTIONS / f"{name}.rst")
        shown = (
            f"report('figures/{name}.svg', caption={caption!r}, category='Dead directions', "
            f"labels={{'result': '{name}'}})"
        )
        lines += [
            f"rule draw_{name}:",
            f"    input: 'drawn/{name}.svg'",
            f"    output: {shown}",
            "    shell: 'cp {input} {output}'",
        ]
    (tmp_path / "Snakefile").write_text("\n".join(lines) + "\n")
    subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    return tmp_path


def test_figures_and_captions_are_in_the_report(drawn: Path) -> None:
    """What is in the file; that a reader sees it is tested on the smoke run's report."""
    subprocess.run(
        [sys.executable, "-m", "snakemake", "--report", "report.html"],
        cwd=drawn,
        check=True,
        capture_output=True,
    )
    page = (drawn / "report.html").read_text()
    assert page.count("data:image/svg+xml") >= len(TARGETS)
    assert all(caption_heading(name).split()[0] in page for name in TARGETS)
    opening = re.search(r"var workflow_desc = (.*);", page)
    assert opening
    assert json.loads(opening.group(1)).count("<svg") == 1, (
        "one figure for the one study of this run"
    )


def test_every_study_opens_the_report_with_a_figure_that_it_makes(project: Project) -> None:
    """Names of figures and of studies in the opening page are those of the rules."""
    made = project.outputs("all")
    rules = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    assert set(HEADLINES) | {"Controls"} == set(re.findall(r'category="([^"]+)"', rules))
    assert [
        study for study, name in HEADLINES.items() if not any(path.endswith(name) for path in made)
    ] == []


def test_the_report_of_the_smoke_run_is_readable(finished: Project, tmp_path: Path) -> None:
    finished.run("smoke", "--report", str(tmp_path / "report.html"))
    # a browser on a busy machine may lose a page's state; the page itself is the same each time
    for attempt in range(4):
        try:
            with browsing(tmp_path / f"profile-{attempt}") as browser:
                assert_opening(browser, tmp_path / "report.html", tmp_path / "opening.png")
                assert assert_readable(browser, tmp_path / "report.html", tmp_path) == {*TARGETS}
            return
        except AssertionError:
            if attempt == 3:
                raise
