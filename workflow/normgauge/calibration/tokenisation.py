"""The tokenizer of a checkpoint folder, whatever its storage, as one `tokenizers.Tokenizer`; text
to ids; ids to windows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import BertWordPieceTokenizer, Regex, Tokenizer, models, pre_tokenizers, processors

from normgauge.checkpoints.layout import refuse_pointer
from normgauge.errors import InputError, is_damage, one_line
from normgauge.provenance import sha256_file

# One SMILES token: a bracket atom, a two-letter element, an element or aromatic atom, the reaction
# arrow, a bond, branch or dot, a ring closure (one digit, % and two digits, or %(three digits)).
# The convention of reaction language models; rxnfp's vocabulary is built on it.
SMILES_TOKEN = r"\[[^\]]+\]|Br|Cl|[BCNOPSFIbcnops]|>>|[-=#$:/\\.()+~@?*|>]|%\(\d{3}\)|%\d{2}|\d"

# A tokenizer that does not know a tenth of what it reads was made for another kind of text: BERT
# vocabularies leave well under 1 % unknown.
UNKNOWN_LIMIT = 0.1

# What BERT calls special in a vocabulary of lines; other bracketed lines are atoms in one of
# SMILES.
SPECIAL_LINES = frozenset({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})

ID_LIMIT = 1 << 31  # ids are kept in 32 bits with a sign


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, the sha256 of the file that defines it, and the special ids that its template
    puts around one sequence.
    """

    tokenizer: Tokenizer
    sha256: str
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    @property
    def special_ids(self) -> set[int]:
        return {
            token
            for token, added in self.tokenizer.get_added_tokens_decoder().items()
            if added.special
        }


def find_tokenizer(folder: str | os.PathLike[str]) -> Path | None:
    """The file that defines the folder's tokenizer: tokenizer.json, else vocab.txt, else the only
    GGUF file, else None.
    """
    folder = Path(folder)
    for name in ("tokenizer.json", "vocab.txt"):
        if (folder / name).is_file():
            return folder / name
    quantised = sorted(folder.glob("*.gguf"))
    return quantised[0] if len(quantised) == 1 else None


def load_tokenizer(folder: str | os.PathLike[str]) -> TextTokenizer:
    """The folder's tokenizer without padding and truncation; InputError when there is none or it
    cannot be read.
    """
    path = find_tokenizer(folder)
    if path is None:
        raise InputError(
            f"{Path(folder).name}: no tokenizer: expected tokenizer.json, vocab.txt or one .gguf "
            "file; add it to the source's paths, "
            "name a model to borrow one from under `tokenizer`, or use calibration: random-tokens"
        )
    refuse_pointer(path)
    return _load(path)


def special_tokens(folder: str | os.PathLike[str]) -> set[int]:
    """Ids that the folder's tokenizer calls special, which generated ids leave out.

    Nothing is cut into tokens here: of vocab.txt the lines' names are enough, and a tokenizer that
    cannot be read is passed over with a line on stderr.
    """
    path = find_tokenizer(folder)
    if path is None:
        return set()
    try:
        if path.suffix == ".txt":
            return {
                number for number, token in enumerate(_vocabulary(path)) if token in SPECIAL_LINES
            }
        return load_tokenizer(folder).special_ids
    except InputError as error:
        print(
            f"{error}. Generated ids need no tokenizer: they leave out the special ids of the "
            "config alone",
            file=sys.stderr,
        )
        return set()


@one_line("a vocabulary")
def _vocabulary(path: Path) -> list[str]:
    """The tokens of a vocab.txt in the order of their ids."""
    refuse_pointer(path)
    return _lines(path.read_bytes().decode("utf-8"))


@one_line("a tokenizer")
def _load(path: Path) -> TextTokenizer:
    tokenizer = _READERS[path.suffix](path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    prefix, suffix = _template(tokenizer)
    if (largest := max((*prefix, *suffix), default=0)) >= ID_LIMIT:
        raise InputError(
            f"{path}: special token id {largest}; no model has such a vocabulary: fetch the "
            "tokenizer again"
        )
    return TextTokenizer(tokenizer, sha256_file(path), prefix, suffix)


def _from_vocabulary(path: Path) -> Tokenizer:
    """WordPiece when there are ## continuations; a whole-token SMILES vocabulary when there is an
    aromatic carbon and a branch.
    """
    tokens = _vocabulary(path)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocabulary]
    if missing:
        raise InputError(
            f"{path.name}: expected the BERT tokens [UNK], [CLS] and [SEP], {missing[0]} is "
            "missing; give a tokenizer.json"
        )
    words = [token for token in tokens if not token.startswith("[")]
    if any(token.startswith("##") for token in words):
        uncased = not any(token != token.lower() for token in words)
        return BertWordPieceTokenizer(vocabulary, lowercase=uncased)._tokenizer
    if not {"C", "c", "(", ")", "="} <= vocabulary.keys():
        raise InputError(
            f"{path.name}: neither a WordPiece vocabulary (no ## entries) nor a SMILES one; give a "
            "tokenizer.json"
        )
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES_TOKEN), behavior="isolated")
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return tokenizer


def _lines(text: str) -> list[str]:
    """The lines of a file whose line numbers are ids: ended by line feeds alone, before which
    Windows puts a carriage return.

    Vocabularies hold the other characters that Unicode ends lines with (form feed, U+0085, U+2028)
    as tokens.
    """
    lines = text.removesuffix("\n").split("\n")
    return (
        [line.removesuffix("\r") for line in lines]
        if all(line.endswith("\r") for line in lines[:-1])
        else lines
    )


def _from_gguf(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    # Left unset, an auto_map beside the file makes transformers ask on stdin whether to run the
    # code that it names.
    found = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
    return found.backend_tokenizer


_READERS = {
    ".json": lambda path: Tokenizer.from_file(str(path)),
    ".txt": _from_vocabulary,
    ".gguf": _from_gguf,
}


def _template(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special ids before and after a sequence, read off the encoding of one letter."""
    bare = tokenizer.encode("C", add_special_tokens=False).ids
    full = tokenizer.encode("C", add_special_tokens=True).ids
    start = next(
        (start for start in range(len(full)) if full[start : start + len(bare)] == bare), 0
    )
    return tuple(full[:start]), tuple(full[start + len(bare) :])


def token_stream(
    documents: Sequence[str], separator: str, tokenizer: Tokenizer, vocabulary: int
) -> np.ndarray:
    """All documents, each followed by the separator, as one int32 stream of ids without special
    tokens.

    Raises InputError when an id lies beyond the model's vocabulary or the tokenizer does not know
    the text.
    """
    stream = _ids([text + separator for text in documents], tokenizer)
    if stream.size and stream.max() >= vocabulary:
        raise InputError(
            f"tokenizer: id {stream.max()} is beyond the model's vocabulary of {vocabulary}; use "
            "the model's own tokenizer"
        )
    stream = stream.astype(np.int32)
    unknown = _unknown_id(tokenizer)
    if (
        unknown is not None
        and stream.size
        and (share := float(np.mean(stream == unknown))) > UNKNOWN_LIMIT
    ):
        raise InputError(
            f"tokenizer: {share:.0%} of the corpus is unknown to it; choose a corpus that suits "
            "the model"
        )
    return stream


def _ids(texts: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    """The ids of all texts, one after the other: int64. A malformed tokenizer may load and fail, or
    panic, on its first text.
    """
    try:
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        return np.fromiter(
            (token for encoding in encodings for token in encoding.ids), dtype=np.int64
        )
    except BaseException as error:
        if not is_damage(error):
            raise
        raise InputError(
            f"tokenizer: fails on the corpus ({error}); fetch the tokenizer again"
        ) from error


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    token = getattr(tokenizer.model, "unk_token", None)
    return None if token is None else tokenizer.token_to_id(token)


def choose_windows(stream: np.ndarray, size: int, count: int, seed: int) -> np.ndarray:
    """`count` of the consecutive windows of `size` ids, chosen without replacement and kept in
    corpus order: int32 (count, size).

    Raises InputError when the stream has fewer windows.
    """
    available = len(stream) // size
    if available < count:
        raise InputError(
            f"corpus too short: {len(stream)} tokens give {available} windows of {size}, {count} "
            "are needed; "
            "lower calibration.sequences or calibration.length, or choose a longer corpus"
        )
    chosen = np.sort(np.random.default_rng(seed).choice(available, size=count, replace=False))
    return stream[: available * size].reshape(available, size)[chosen]
