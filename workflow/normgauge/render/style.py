"""The look shared by every figure and typeset table: fonts, colours, and saving with reproducible
bytes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from normgauge.provenance import atomic_path

WIDTH = 7.0
"""Width of every figure, inches: the text width of a two-column paper."""

BODY, SMALL, NOTE = 8.0, 7.5, 7.5
"""Font sizes, points."""

BLACK, GREY, PALE = "#000000", "#595959", "#f2f2f2"
TRAINED, RANDOM, DEVIATES = "#0072B2", "#E69F00", "#D55E00"
"""Okabe-Ito colours; each series also has its own line style and marker, so that it survives grey
printing.
"""

FORM, DIRECTION, SIGMA = r"u^\mathrm{T}\!Au", r"u=\gamma^{-1}/\|\gamma^{-1}\|", r"\sigma_{(r_0)}"
"""Mathematics that several captions share, to be set between dollar signs."""

RC: Any = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": BODY,
    "axes.labelsize": BODY,
    "axes.titlesize": BODY,
    "xtick.labelsize": NOTE,
    "ytick.labelsize": NOTE,
    "legend.fontsize": BODY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "normgauge",
    "text.hinting": "none",
    "hatch.linewidth": 0.5,
}

_METADATA = {".pdf": {"CreationDate": None, "ModDate": None}, ".svg": {"Date": None}}
_CANVAS = {".pdf": FigureCanvasPdf, ".svg": FigureCanvasSVG}


@contextmanager
def look() -> Iterator[None]:
    """matplotlib's own defaults under RC, inside the block: a user's matplotlibrc changes no
    figure.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def save(figure: Figure, outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Write the figure to every path, PDF or SVG by suffix, atomically; the same figure gives the
    same bytes.
    """
    for output in map(Path, outputs):
        buffer = io.BytesIO()
        with look():
            _CANVAS[output.suffix](figure).print_figure(
                buffer, format=output.suffix[1:], metadata=_METADATA[output.suffix]
            )
        with atomic_path(output) as temporary:
            temporary.write_bytes(buffer.getvalue())
