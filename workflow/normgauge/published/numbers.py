"""Every number of a text, and the checked-in list that says what covers each.

A number is a run of digits that no letter, underscore or backslash precedes (those are names: fp64,
X_0), with its sign, thousands, decimals and power of ten, in LaTeX or plain; a hash is one as well.
Spelled-out numbers are not listed.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from normgauge.errors import InputError
from normgauge.published.claims import Claim

REASONS: Mapping[str, str] = {
    "reference": "part of a citation or an address",
    "heading": "number of a section, table, figure, equation, statement or list",
    "name": "part of the name of a model, data set, language or machine",
    "date": "a date or a time of writing",
    "setting": "a choice of the protocol, listed as such",
    "formula": "a constant of a formula or definition",
    "label": "index of a layer, head, unit, column, token or position that a result is about",
    "hypothetical": "of an example, a test proposed, or an outlook; nothing is claimed",
    "earlier": "a value that the text itself reports as superseded",
    "repetition": "the same number run together with its own rendering",
    "bookkeeping": "cost, length or version of the writing itself",
    "code": "in source code printed by the text",
}

_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_POWER = r"(?:10\s*\^\s*\{?\s*[-−–+]?\s*\d+\s*\}?|10[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
_DIGITS = r"(?:\d+(?:(?:,|\{,\})\d{3}(?!\d))*(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    r"(?<![A-Za-z_\d.])(?=[0-9a-f]*[a-f])(?=[a-f]*\d)[0-9a-f]{12,}"
    r"|(?<![A-Za-z_\d.\\])(?:(?<![\w)\]}}])[-−+])?"
    rf"(?:{_POWER}|{_DIGITS}(?:[eE][-−+]?\d+|\s*(?:\\times|\\cdot|×)\s*{_POWER})?)"
)
_HEADING = re.compile(r"#+\s+(.*)|((?:\d+|[A-Z])(?:\.\d+)*\s+[A-Z][^.]{0,80})$")
FIELDS = ("line", "section", "words", "numbers", "covered_by")


@dataclass(frozen=True)
class Number:
    """A number of a text. line: from 1. written: without thousands separators, in ASCII."""

    line: int
    section: str
    words: str
    written: str


@dataclass(frozen=True)
class Passage:
    """Neighbouring numbers of one line that one claim or reason covers."""

    line: int
    section: str
    words: str
    numbers: tuple[str, ...]
    covered_by: str


def numbers_of(text: str) -> Iterator[Number]:
    """The numbers of a text, in its order.

    Example: [n.written for n in numbers_of("N = 8,192, about 3.7×10⁻⁹")] is ["8192", "3.7e-9"].
    """
    section = ""
    for line, content in enumerate(text.splitlines(), 1):
        if heading := _HEADING.match(content.strip()):
            section = " ".join((heading[1] or heading[2]).split()[:4])
        for match in _NUMBER.finditer(content):
            before = _few_words(content[max(0, match.start() - 60) : match.start()], -2)
            after = _few_words(content[match.end() : match.end() + 40], 1)
            yield Number(line, section, f"{before} {after}".strip(), _plain(match[0]))


def _few_words(text: str, count: int) -> str:
    """The first `count` words of a text, or its last ones where the count is negative; no words of
    LaTeX.
    """
    words = re.findall(r"(?<![\\\w-])[A-Za-z][A-Za-z-]{2,}(?![\w}])", text)
    return " ".join(words[:count] if count > 0 else words[count:])


def _plain(written: str) -> str:
    text = written.replace("{,}", "").replace("−", "-").replace("–", "-")
    text = re.sub(r"(?<=\d),(?=\d)", "", text)
    text = re.sub(r"10([⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+)", lambda m: "10^" + m[1].translate(_SUPERSCRIPT), text)
    text = re.sub(r"\s*(?:\\times|\\cdot|×)\s*10\s*\^", "e", text)
    text = re.sub(r"^([-+]?)10\s*\^", r"\g<1>1e", text)
    return re.sub(r"[\s{}]", "", text)


def read_list(path: str | os.PathLike[str]) -> list[Passage]:
    """The passages of a list. Raises InputError naming file and line for one that is malformed."""
    passages = []
    with open(path, newline="", encoding="utf-8") as handle:
        reader = csv.DictReader(handle)
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise InputError(f"{Path(path)}: expected the columns {', '.join(FIELDS)}; add them")
        for row in reader:
            numbers = tuple((row["numbers"] or "").split())
            if not numbers or not (row["line"] or "").isdigit() or not row["covered_by"]:
                raise InputError(
                    f"{Path(path)}: line {reader.line_num}: expected a line, numbers and what "
                    "covers them; complete it"
                )
            passages.append(
                Passage(int(row["line"]), row["section"], row["words"], numbers, row["covered_by"])
            )
    return passages


def covered(passages: Iterable[Passage]) -> Counter[str]:
    """How many numbers each claim or reason covers."""
    counts: Counter[str] = Counter()
    for passage in passages:
        counts[passage.covered_by] += len(passage.numbers)
    return counts


def uncovered(passages: Sequence[Passage], claims: Sequence[Claim]) -> list[str]:
    """A line for each fault between a list and its claims.

    Numbers without a claim or reason, claims that no number points to, and claims whose own value
    is not among the numbers that do.
    """
    names = {claim.name for claim in claims}
    faults = [
        f"line {passage.line}: {' '.join(passage.numbers)}: covered by {passage.covered_by}, "
        "which is neither a claim nor a reason"
        for passage in passages
        if passage.covered_by not in names and passage.covered_by not in REASONS
    ]
    values: dict[str, set[str]] = {}
    for passage in passages:
        values.setdefault(passage.covered_by, set()).update(passage.numbers)
    for claim in claims:
        if claim.name not in values:
            if not claim.spelled:
                faults.append(f"claim {claim.name}: no number of the text points to it")
        elif not claim.spelled and not _is_among(claim, values[claim.name]):
            faults.append(
                f"claim {claim.name}: {claim.written} is not among the numbers that point to it: "
                f"{' '.join(sorted(values[claim.name]))}"
            )
    return faults


def _is_among(claim: Claim, numbers: Set[str]) -> bool:
    """Whether a claim's value, as it stands or in percent, or a number of how it is written, is
    among numbers of the text.
    """
    if any(number.written in numbers for number in numbers_of(claim.written)):
        return True
    if not isinstance(claim.value, int | float):
        return False
    values = [abs(claim.value), 100 * abs(claim.value)]
    return any(
        math.isclose(abs(float(number)), value, rel_tol=1e-9)
        for number in numbers
        if not re.search(r"[a-df-z]", number)
        for value in values
    )


def compared(numbers: Iterable[Number], passages: Iterable[Passage]) -> list[str]:
    """A line for each number of the text that the list lacks, and each that it has too many."""
    found = Counter((number.line, number.written) for number in numbers)
    listed = Counter((passage.line, number) for passage in passages for number in passage.numbers)
    missing = [
        f"line {line}: {number} is not listed" for line, number in (found - listed).elements()
    ]
    surplus = [
        f"line {line}: {number} is not in the text" for line, number in (listed - found).elements()
    ]
    return missing + surplus
