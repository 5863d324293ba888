"""Text on a page: how wide it is, where it breaks, and which letter refers to a footnote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.cbook import is_math_text
from matplotlib.font_manager import FontProperties

_SCALE = 10


class Ruler:
    """Measures text in points, so that cells and titles can be wrapped before they are drawn. Use
    inside `look()`.
    """

    def __init__(self) -> None:
        self._renderer = RendererAgg(1, 1, 72 * _SCALE)
        self._advances: dict[tuple[str, float, str, str], float] = {}

    def width(self, text: str, size: float, weight: str = "normal", slant: str = "normal") -> float:
        if not text:
            return 0.0
        properties: Any = FontProperties(size=size, weight=weight)
        properties.set_style(slant)
        return (
            self._renderer.get_text_width_height_descent(
                text, properties, bool(is_math_text(text))
            )[0]
            / _SCALE
        )

    def wrap(
        self, text: str, limit: float, size: float, weight: str = "normal", slant: str = "normal"
    ) -> list[str]:
        """Lines no wider than `limit` points: broken at spaces, then after - / _ . + in a long
        word, then anywhere.

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
                for part in (
                    [piece] if self.width(piece, size, weight, slant) <= limit else _atoms(piece)
                ):
                    if lines[-1] and self.width(lines[-1] + part, size, weight, slant) > limit:
                        lines.append("")
                    lines[-1] += part
        return lines

    def _fits(self, line: str, limit: float, size: float, weight: str, slant: str) -> bool:
        """Whether a line is no wider than `limit`. Measuring is slow: a sum of widths decides where
        it is clear.
        """
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
            self._advances[key] = self.width(f"n{text}n", size, weight, slant) - self.width(
                "nn", size, weight, slant
            )
        return self._advances[key]

    def narrowest(
        self, text: str, size: float, weight: str = "normal", slant: str = "normal"
    ) -> float:
        """Width of the widest piece that `wrap` would rather not break."""
        return max(
            self.width(piece, size, weight, slant)
            for word in text.split(" ")
            for piece in _pieces(word)
        )


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
        return "; ".join(
            rf"$^{{\mathit{{{_letter(number)}}}}}${text}" for number, text in enumerate(self._texts)
        )


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number % 26] * (number // 26 + 1)


def plain(text: str) -> str:
    """Text from data, safe to typeset: a dollar sign would start mathematics."""
    return text.replace("$", r"\$")
