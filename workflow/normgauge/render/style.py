"""The look shared by every figure and typeset table: fonts, colours, number formats, footnotes, and saving with reproducible bytes."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from normgauge.provenance import atomic_path

WIDTH = 7.0
"""Width of every figure, inches: the text width of a two-column paper."""

BODY, SMALL, NOTE = 8.0, 7.5, 7.0
"""Font sizes, points."""

BLACK, GREY, PALE = "#000000", "#595959", "#f2f2f2"
TRAINED, RANDOM, DEVIATES = "#0072B2", "#E69F00", "#D55E00"
"""Okabe-Ito colours; each series also has its own line style and marker, so that it survives grey printing."""

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
}

_SCALE = 10
_METADATA = {".pdf": {"CreationDate": None, "ModDate": None}, ".svg": {"Date": None}}
_CANVAS = {".pdf": FigureCanvasPdf, ".svg": FigureCanvasSVG}


def save(figure: Figure, outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Write the figure to every path, PDF or SVG by suffix, atomically; the same figure gives the same bytes."""
    for output in map(Path, outputs):
        buffer = io.BytesIO()
        with matplotlib.rc_context(RC):
            _CANVAS[output.suffix](figure).print_figure(buffer, format=output.suffix[1:], metadata=_METADATA[output.suffix])
        with atomic_path(output) as temporary:
            temporary.write_bytes(buffer.getvalue())


class Ruler:
    """Measures text in points, so that cells and titles can be wrapped before they are drawn. Use inside `rc_context(RC)`."""

    def __init__(self) -> None:
        self._renderer = RendererAgg(1, 1, 72 * _SCALE)
        self._advances: dict[tuple[str, float, str, str], float] = {}

    def width(self, text: str, size: float, weight: str = "normal", slant: str = "normal") -> float:
        if not text:
            return 0.0
        properties: Any = FontProperties(size=size, weight=weight)
        properties.set_style(slant)
        return self._renderer.get_text_width_height_descent(text, properties, bool(is_math_text(text)))[0] / _SCALE

    def wrap(self, text: str, limit: float, size: float, weight: str = "normal", slant: str = "normal") -> list[str]:
        """Lines no wider than `limit` points: broken at spaces, then after - / _ . + in a long word, then anywhere.

        Mathematics is never broken.
        """
        lines = [""]
        for word in text.split(" "):
            candidate = f"{lines[-1]} {word}" if lines[-1] else word
            if self._fits(candidate, limit, size, weight, slant):
                lines[-1] = candidate
                continue
            if lines[-1]:
                lines.append("")
            for piece in _pieces(word):
                for part in [piece] if self.width(piece, size, weight, slant) <= limit else _atoms(piece):
                    if lines[-1] and self.width(lines[-1] + part, size, weight, slant) > limit:
                        lines.append("")
                    lines[-1] += part
        return lines

    def _fits(self, line: str, limit: float, size: float, weight: str, slant: str) -> bool:
        """Whether a line is no wider than `limit`. Measuring is slow: a sum of widths decides where it is clear."""
        words = line.split(" ")
        space = self._advance(" ", size, weight, slant)
        estimate = sum(self._advance(word, size, weight, slant) + space for word in words) - space
        if abs(estimate - limit) > 2 + 0.05 * limit:
            return estimate < limit
        return self.width(line, size, weight, slant) <= limit

    def _advance(self, text: str, size: float, weight: str, slant: str) -> float:
        """What `text` adds to the width of a line, points; kept."""
        key = (text, size, weight, slant)
        if key not in self._advances:
            self._advances[key] = self.width(f"n{text}n", size, weight, slant) - self.width("nn", size, weight, slant)
        return self._advances[key]

    def narrowest(self, text: str, size: float, weight: str = "normal", slant: str = "normal") -> float:
        """Width of the widest piece that `wrap` would rather not break."""
        return max(self.width(piece, size, weight, slant) for word in text.split(" ") for piece in _pieces(word))


def _pieces(word: str) -> list[str]:
    """Parts between which a word may be broken: after a joint."""
    pieces: list[str] = []
    for atom in _atoms(word):
        if not pieces or pieces[-1].endswith(tuple("-/_.+")):
            pieces.append("")
        pieces[-1] += atom
    return pieces or [""]


def _atoms(word: str) -> list[str]:
    """Letters, each with the mathematics that follows it: what must stay together."""
    atoms: list[str] = []
    for token in re.findall(r"\$.*?(?<!\\)\$|\\\$|.", word):
        if atoms and len(token) > 1 and token.startswith("$"):
            atoms[-1] += token
        else:
            atoms.append(token)
    return atoms


class Footnotes:
    """Letters a, b, c... for texts, in order of first use."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, texts: Iterable[str]) -> str:
        """The superscript that stands for these texts, or nothing."""
        letters = []
        for text in texts:
            if text not in self._texts:
                self._texts.append(text)
            letters.append(_letter(self._texts.index(text)))
        return rf"$^{{\mathit{{{','.join(letters)}}}}}$" if letters else ""

    def text(self) -> str:
        """All footnotes as one paragraph, empty when there are none."""
        return "; ".join(rf"$^{{\mathit{{{_letter(number)}}}}}${text}" for number, text in enumerate(self._texts))


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number % 26] * (number // 26 + 1)


def number(value: float | None, digits: int = 3) -> str:
    """A value with `digits` significant digits: plain between 0.001 and 10000, else as a power of ten; a dash when there is none."""
    if value is None:
        return "—"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -3 <= power < 4:
        return f"{value:.{max(digits - 1 - power, 0)}f}".replace("-", "−")
    return rf"${mantissa}\times10^{{{power}}}$"


def decades(limits: tuple[float, float]) -> list[float]:
    """Powers of ten inside the limits, one in so many that there are at most five."""
    first, last = math.ceil(math.log10(limits[0])), math.floor(math.log10(limits[1]))
    step = math.ceil((last - first + 1) / 5)
    return [10.0**power for power in range(first, last + 1) if power % step == 0]


def decimals(value: float | None, places: int) -> str:
    """A value with a fixed number of decimals; a dash when there is none."""
    return "—" if value is None else f"{value:.{places}f}".replace("-", "−")


def weight_notes(row: dict[str, object]) -> list[str]:
    """What a reader must know about the weights behind a row: quantised or half precision, trained here."""
    notes = []
    if row["precision"] == "quantised":
        notes.append(f"weights stored as {row['stored_as']}, dequantised")
    elif row["precision"] == "half":
        notes.append(f"weights stored as {row['stored_as']} (half precision)")
    if row["provenance"] == "trained here":
        notes.append("trained here by this workflow, not a published checkpoint")
    return notes


def input_notes(row: dict[str, object]) -> list[str]:
    """What a reader must know about the inputs behind a row: generated ones, and a token before each sequence."""
    inputs, _, token = str(row["inputs"]).partition(", behind token ")
    begun = [f"every sequence begins with the token {token}"] if token else []
    if inputs.startswith("noise as audio"):
        return ["hears seeded Gaussian noise, not speech"]
    return [*([f"reads generated inputs ({inputs})"] if inputs.startswith("random-") else []), *begun]


def plain(text: str) -> str:
    """Text from data, safe to typeset: a dollar sign would start mathematics."""
    return text.replace("$", r"\$")
