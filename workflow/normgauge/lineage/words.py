"""Exact integer hashes of stored values: sums modulo 2^64, which commute, so that nothing is
sorted or rounded.

An entry's word depends on its bits alone. The words of an axis are summed with the colours of the
other axes: over a permutation of these nothing changes, and over signs the odd sum changes sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from normgauge.errors import InputError

Words = np.ndarray
"""uint64; arithmetic is modulo 2^64."""

Weights = tuple[Words, Words | None]
"""Colours of all other axes, even and odd."""

_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64: Steele et al., 2014
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(1 << 63)
CHUNK = 1 << 17  # entries that are hashed at once, so that they stay in the cache
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_SHORT = 2  # bytes of the dtypes whose words are looked up


def finalised(words: Words) -> Words:
    """The finaliser of SplitMix64, a bijection of the 64-bit words that keeps 0. In place."""
    for shift, factor in _MIXERS:
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def mixed(*parts: Words | np.unsignedinteger | int) -> Words:
    """One word of several, in their order; arrays broadcast."""
    result: Words = np.array(0x243F6A8885A308D3, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            step = np.bitwise_xor(result, np.asarray(part, dtype=np.uint64)) * _GOLDEN + _GOLDEN
            result = finalised(np.atleast_1d(step)).reshape(np.shape(step))
    return np.asarray(result, dtype=np.uint64)


@cache
def named(text: str) -> np.uint64:
    """The word of a name; odd, so that multiplying by it loses nothing."""
    digest = hashlib.sha256(text.encode()).digest()
    return np.uint64(int.from_bytes(digest[:8], "little") | 1)


def negated(words: Words) -> Words:
    with np.errstate(over="ignore"):
        return np.uint64(0) - words


def sign_of(words: Words) -> np.ndarray:
    """int8: +1 or -1 by the sign of a word as a residue, 0 for the two that are their own
    negative.
    """
    own = (words == 0) | (words == HALF)
    return np.where(own, 0, np.where(words < HALF, 1, -1)).astype(np.int8)


def without_sign(words: Words) -> Words:
    return np.minimum(words, negated(words))


def signed(words: Words, signs: np.ndarray) -> Words:
    """Each word, its negative, or 0 by the sign +1, -1 or 0."""
    return np.where(signs > 0, words, np.where(signs < 0, negated(words), np.uint64(0)))


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """The values' bits, unsigned, in the tensor's shape."""
    flat = tensor.detach().contiguous().view(-1)
    kind = UNSIGNED[tensor.element_size()]
    return flat.view(torch.uint8).numpy().view(kind).reshape(tensor.shape)


def require_numbers(name: str, tensor: torch.Tensor) -> None:
    """InputError for a tensor with NaN, which has no sign and no one form."""
    if bool(torch.isnan(tensor).any()):
        raise InputError(f"tensor {name} holds NaN, which has no canonical form; restore its file")


@cache
def _short_words(with_sign: bool) -> Words:
    values = np.arange(1 << 16, dtype=np.uint64)
    kept = values if with_sign else values & np.uint64(0x7FFF)
    return finalised(np.where(kept == np.uint64(0x8000), np.uint64(0), kept))


def _magnitudes(bits: np.ndarray) -> Words:
    """The words of absolute values: 0 for zeros."""
    if bits.itemsize == _SHORT:
        return _short_words(False)[bits]
    mask = np.array(np.iinfo(bits.dtype).max >> 1, dtype=bits.dtype)
    return finalised((bits & mask).astype(np.uint64))


def _whole(bits: np.ndarray) -> Words:
    """The words of values with their sign; -0.0 is 0.0."""
    if bits.itemsize == _SHORT:
        return _short_words(True)[bits]
    negative_zero = np.array((np.iinfo(bits.dtype).max >> 1) + 1, dtype=bits.dtype)
    return finalised(np.where(bits == negative_zero, 0, bits).astype(np.uint64))


def _negative(bits: np.ndarray) -> Words:
    """1 where the sign bit is set."""
    return (bits >> np.array(8 * bits.itemsize - 1, dtype=bits.dtype)).astype(np.uint64)


def axis_sums(
    bits: np.ndarray, axis: int, even: Sequence[Words], odd: Sequence[Words] | None
) -> tuple[Words, Words | None]:
    """Sums of the words along all axes but one, weighted by colours.

    bits: of a tensor. even, odd: the colours of every other axis, in order; `odd` None where no
    sign acts on any axis: then the words keep the sign. Returns the even sum, blind to signs (or
    of signed words), and the odd one.
    """
    rows = np.moveaxis(bits, axis, 0)
    width = int(np.prod(rows.shape[1:], dtype=np.int64))
    weights = _outer(even), None if odd is None else _outer(odd)
    if axis == 0 or width == 1:
        return _row_sums(rows.reshape(len(rows), width), weights)
    return _column_sums(rows, weights)


def _outer(colours: Sequence[Words]) -> Words:
    product = np.ones(1, dtype=np.uint64)
    for colour in colours:
        product = np.multiply.outer(product, colour).ravel()
    return product


def _row_sums(rows: np.ndarray, weights: Weights) -> tuple[Words, Words | None]:
    even_weights, odd_weights = weights
    even = np.zeros(len(rows), dtype=np.uint64)
    odd = None if odd_weights is None else np.zeros_like(even)
    step = max(1, CHUNK // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        words = _whole(piece) if odd is None else _magnitudes(piece)
        even[start : start + step] = (words * even_weights).sum(1, dtype=np.uint64)
        if odd is not None and odd_weights is not None:
            _negate_where(words, piece)
            odd[start : start + step] = (words * odd_weights).sum(1, dtype=np.uint64)
    return even, odd


def _column_sums(rows: np.ndarray, weights: Weights) -> tuple[Words, Words | None]:
    """The same where the axis is not the first: rows (n, ...) seen as columns of the stored
    order.
    """
    even_weights, odd_weights = weights
    columns = rows.reshape(len(rows), -1).T  # (others, n): contiguous for a matrix
    even = np.zeros(len(rows), dtype=np.uint64)
    odd = None if odd_weights is None else np.zeros_like(even)
    step = max(1, CHUNK // max(1, len(rows)))
    for start in range(0, len(columns), step):
        piece = np.ascontiguousarray(columns[start : start + step])
        words = _whole(piece) if odd is None else _magnitudes(piece)
        even += (words * even_weights[start : start + step, None]).sum(0, dtype=np.uint64)
        if odd is not None and odd_weights is not None:
            _negate_where(words, piece)
            odd += (words * odd_weights[start : start + step, None]).sum(0, dtype=np.uint64)
    return even, odd


def _negate_where(words: Words, bits: np.ndarray) -> None:
    """Negate, in place, the words of negative values: (w xor -s) + s."""
    negative = _negative(bits)
    words ^= np.uint64(0) - negative
    words += negative
