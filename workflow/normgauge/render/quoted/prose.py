"""Marks in Markdown, compared with the tables or rewritten from them.

A mark is invisible: `<!--q:NAME key=value-->0.012<!--/q-->` quotes the figure NAME with these
arguments, and `<!--t:NAME-->`, a Markdown table and `<!--/t-->` on lines of their own the block
NAME.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from normgauge.errors import InputError
from normgauge.provenance import atomic_path
from normgauge.render.quoted.declaration import Block, Declaration, Document
from normgauge.render.quoted.figures import Figures, words_of

QUOTED = re.compile(r"<!--q:([^\s>]+)((?: [^>]*?)?)-->(.*?)<!--/q-->", re.DOTALL)
TABLE = re.compile(r"^<!--t:([^\s>]+)-->\n(.*?)^<!--/t-->$", re.DOTALL | re.MULTILINE)
STRAY = re.compile(r"<!--/?[qt]\b[^>]*-->")
HEADING = re.compile(r"^(#+) (.*?)\s*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(
    r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+|^ {4,}\S.*?$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(
    r"(?<![\w.,/@^-])[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-−+]?\d+)?(?:\s?%)?(?![\w/])"
)
LISTED = re.compile(r"^\s*\d+\. ", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One line: where, and what is wrong."""

    document: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.what}"


def check_prose(declaration: Declaration, figures: Figures, root: Path) -> list[Fault]:
    """Every figure that is not the table's, number without a mark, broken mark, and allowance or
    declaration without use.
    """
    faults, used = [], set()
    for name, document in declaration.documents.items():
        text = _read(root / name)
        faults += check_marks(name, text, declaration)
        for place, mark, expected in _quotations(text, declaration, figures):
            used |= mark
            found = text[place.start() : place.end()]
            if isinstance(expected, InputError):
                faults.append(Fault(name, _line(text, place.start()), str(expected)))
            elif found != expected:
                faults.append(Fault(name, _line(text, place.start()), _difference(found, expected)))
        faults += unmarked_numbers(name, text, document)
    unused = sorted({*declaration.figures, *declaration.blocks} - used)
    faults += [
        Fault(str(declaration.path), 1, f"{name} is quoted nowhere; delete it") for name in unused
    ]
    return faults


def update_prose(declaration: Declaration, figures: Figures, root: Path) -> list[str]:
    """Write the tables' figures into the documents; a line for each change. A document is written
    whole, or not at all.
    """
    changes = []
    for name in declaration.documents:
        text = written = _read(root / name)
        for place, _, expected in reversed(list(_quotations(text, declaration, figures))):
            found = text[place.start() : place.end()]
            if not isinstance(expected, InputError) and found != expected:
                changes.append(
                    f"{name}:{_line(text, place.start())}: {_difference(found, expected)}"
                )
                written = written[: place.start()] + expected + written[place.end() :]
        if written != text:
            with atomic_path(root / name) as temporary:
                temporary.write_text(written, encoding="utf-8")
    return changes


def check_marks(name: str, text: str, declaration: Declaration) -> list[Fault]:
    """Marks that are not closed, not opened, or name nothing that is declared. Reads no table."""
    faults = []
    rest = QUOTED.sub(_blank, TABLE.sub(_blank, text))
    for stray in STRAY.finditer(rest):
        faults.append(
            Fault(name, _line(text, stray.start()), f"{stray[0]} has no partner; mend the mark")
        )
    for pattern, declared in ((QUOTED, declaration.figures), (TABLE, declaration.blocks)):
        for mark in pattern.finditer(text):
            if mark[1] not in declared:
                faults.append(
                    Fault(
                        name,
                        _line(text, mark.start()),
                        f"{mark[1]} is not declared in {declaration.path}",
                    )
                )
    return faults


def check_columns(declaration: Declaration, figures: Figures, root: Path) -> None:
    """Raises InputError for a figure in use that names a column which its table's schema does not
    have. Reads no result.
    """
    for name in declaration.documents:
        text = _read(root / name)
        for mark in QUOTED.finditer(text):
            figures.check_columns(mark[1], words_of(mark[2]))
        for mark in TABLE.finditer(text):
            for arguments, template in _cells(declaration.blocks[mark[1]]):
                for figure, given in figures.uses(template, arguments):
                    figures.check_columns(figure, given)


def unmarked_numbers(name: str, text: str, document: Document) -> list[Fault]:
    """Numbers under the document's result headings that are neither marked nor allowed, and
    headings or allowances in vain.
    """
    seen = HIDDEN.sub(_blank, LISTED.sub(_blank, QUOTED.sub(_blank, TABLE.sub(_blank, text))))
    faults = []
    sections = []
    for heading in document.results:
        section = _section(text, heading)
        if section is None:
            faults.append(
                Fault(name, 1, f"no heading {heading!r}; mend the documents of quoted.yaml")
            )
        else:
            sections.append(section)
    for phrase in document.allowed:
        words = r"\s+".join(map(re.escape, phrase.split()))
        pattern = re.compile(rf"(?<![\w.,]){words}(?![.,]?\d)")
        places = [
            place
            for place in pattern.finditer(seen)
            if any(_within(place, section) for section in sections)
        ]
        if not places:
            faults.append(
                Fault(
                    name,
                    1,
                    f"the allowed {phrase!r} does not occur in a section of results; delete it",
                )
            )
        for place in places:
            seen = seen[: place.start()] + _blank(place) + seen[place.end() :]
    lines: dict[int, list[str]] = {}
    for number in NUMBER.finditer(seen):
        if any(_within(number, section) for section in sections):
            lines.setdefault(_line(text, number.start()), []).append(number[0])
    for line, numbers in lines.items():
        shown = text.split("\n")[line - 1].strip()[:80]
        faults.append(
            Fault(name, line, f"neither marked nor allowed: {'; '.join(numbers)} in {shown}")
        )
    return faults


def _quotations(
    text: str, declaration: Declaration, figures: Figures
) -> Iterator[tuple[re.Match[str], set[str], str | InputError]]:
    """Every mark in the order of the text: its place, what it uses, and what should stand there or
    why nothing can.
    """
    marks = [*QUOTED.finditer(text), *TABLE.finditer(text)]
    for mark in sorted(marks, key=lambda mark: mark.start()):
        try:
            if mark.re is QUOTED:
                names = {mark[1]}
                body = figures.text(mark[1], words_of(mark[2]))
                yield mark, names, f"<!--q:{mark[1]}{mark[2]}-->{body}<!--/q-->"
            elif mark[1] in declaration.blocks:
                block = declaration.blocks[mark[1]]
                names = {mark[1]}
                for arguments, template in _cells(block):
                    names |= {figure for figure, _ in figures.uses(template, arguments)}
                yield mark, names, f"<!--t:{mark[1]}-->\n{block_text(block, figures)}<!--/t-->"
        except InputError as error:
            yield mark, names, error


def block_text(block: Block, figures: Figures) -> str:
    """The Markdown table of a block, with a newline behind every line. Raises InputError for a
    column without any row.
    """
    lines = ["| " + " | ".join(block.columns) + " |", "|" + "---|" * len(block.columns)]
    cells = [
        [figures.cell(template, arguments) for template in block.columns.values()]
        for arguments in block.rows
    ]
    for heading, *column in zip(block.columns, *cells, strict=True):
        if all(cell in figures.absences for cell in column):
            raise InputError(
                f"column {heading!r}: no row of the table for any of its cells; mend the block"
            )
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "".join(f"{line}\n" for line in lines)


def _cells(block: Block) -> Iterator[tuple[Mapping[str, str], str]]:
    yield from (
        (arguments, template) for arguments in block.rows for template in block.columns.values()
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read as text ({error}); mend the documents of quoted.yaml"
        ) from error


def _section(text: str, heading: str) -> tuple[int, int] | None:
    """(start, end) of the text below a heading, to the next one of its level or above."""
    headings = list(HEADING.finditer(FENCED.sub(_blank, text)))
    for number, found in enumerate(headings):
        if found[2] == heading:
            after = (each for each in headings[number + 1 :] if len(each[1]) <= len(found[1]))
            following = next(after, None)
            return found.end(), following.start() if following else len(text)
    return None


def _within(place: re.Match[str], section: tuple[int, int]) -> bool:
    return section[0] <= place.start() and place.end() <= section[1]


def _blank(match: re.Match[str]) -> str:
    """Nothing to be seen, of the same length, lines kept: places stay where they are."""
    return re.sub(r"[^\n]", "\0", match[0])


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _difference(found: str, expected: str) -> str:
    """Where two texts of a mark differ, in words."""
    strip: Callable[[str], str] = lambda text: re.sub(r"<!--.*?-->", "", text).strip()  # noqa: E731
    before, after = strip(found).split("\n"), strip(expected).split("\n")
    if len(before) != len(after):
        return f"{len(before) - 2} rows where the tables give {len(after) - 2}"
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    return (
        "; ".join(f"{old} where the tables give {new}" for old, new in pairs)
        or "another layout of the mark"
    )
