"""The map between two factorisations of one product, from the stored factors of both.

A head's values V and output projection O enter a model as the product V O, its queries and keys as
Q K^T. V M and M^-1 O are the same function for every invertible M, so M is what the weights of two
copies determine. `first` (n, r) is what M multiplies, `second` (r, m) what its inverse does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Factors = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class FittedMap:
    """`matrix`: float64 (r, r), invertible. `distance`: what is left between the moved factors and
    the target's, relative to the target's and in root mean square over the two. `condition`:
    largest over smallest weight by which an entry of the map is determined; infinite where one is
    not.
    """

    matrix: np.ndarray
    distance: float
    condition: float

    @property
    def determined(self) -> bool:
        return bool(np.isfinite(self.condition))


def fit_map(source: Factors, target: Factors, roundoff: float) -> FittedMap:
    """The map that brings the source's factors nearest to the target's.

    `roundoff`: eps of the dtype that stores them; what is smaller than that determines nothing, and
    the map is there as near to the identity as its other entries let it. Of the identity, the
    signed permutation with powers of two next to the best, the least-squares map and the balanced
    turn, the first with the smallest distance is taken.
    """
    linear, condition = least_squares_map(source, target, roundoff)
    fitted = [linear]
    # else the two are copies, and nothing comes nearer
    if not distance(linear, source, target) < roundoff:
        fitted += balanced_turn(source, target, roundoff)
    best = min(fitted, key=lambda each: distance(each, source, target))
    candidates = [np.eye(len(best)), *nearest_monomial(best), *fitted]
    matrix = min(candidates, key=lambda each: distance(each, source, target))
    return FittedMap(matrix, distance(matrix, source, target), condition)


def distance(matrix: np.ndarray, source: Factors, target: Factors) -> float:
    """How far the moved factors are from the target's; infinite for a map that is singular."""
    try:
        moved = source[0] @ matrix, np.linalg.solve(matrix, source[1])
    except np.linalg.LinAlgError:
        return float("inf")
    shares = [
        float(np.linalg.norm(found - wanted)) * scale
        for found, wanted, scale in zip(moved, target, _scales(target), strict=True)
    ]
    return math.hypot(*shares) / 2**0.5 if np.isfinite(shares).all() else float("inf")


def _scales(target: Factors) -> list[float]:
    """One over the Frobenius norm of each factor, one for a factor of zeros."""
    return [1 / norm if (norm := float(np.linalg.norm(factor))) else 1.0 for factor in target]


def least_squares_map(
    source: Factors, target: Factors, roundoff: float
) -> tuple[np.ndarray, float]:
    """(the minimiser M of |V M - V'|^2 + |M O' - O|^2 with each factor scaled to norm one, its
    condition).

    With the singular value decompositions V = U S E^T and O' = F T G^T the entries of N = E^T M F
    do
    not meet: each is the least-squares solution of s_i n = (U^T V' F)_ij and t_j n = (E^T O G)_ij,
    so that no condition is squared. Entries with neither s_i nor t_j make an orthogonal block, the
    nearest to the identity's.
    """
    scales = _scales(target)
    left, first, turn = np.linalg.svd(scales[0] * source[0], full_matrices=False)
    back, second, right = np.linalg.svd(scales[1] * target[1], full_matrices=False)
    size = source[0].shape[1]
    first, turn = _completed(first, turn, size)
    second, back = _completed(second, back.T, size)
    wanted = np.zeros((2, size, size))
    wanted[0, : left.shape[1]] = scales[0] * left.T @ target[0] @ back.T
    wanted[1, :, : len(right)] = scales[1] * turn @ source[1] @ right.T
    weight = np.hypot(first[:, None], second)
    known = weight > roundoff * weight.max(initial=0.0)
    entries = (first[:, None] * wanted[0] + second * wanted[1]) / np.where(known, weight, 1.0) ** 2
    if not known.all():
        rows, columns = ~known.all(1), ~known.all(0)
        block = np.linalg.svd((turn @ back.T)[np.ix_(rows, columns)], full_matrices=False)
        entries[np.ix_(rows, columns)] = block[0] @ block[2]
    condition = float(weight.max() / weight.min()) if known.all() else float("inf")
    return turn.T @ entries @ back, condition


def _completed(values: np.ndarray, vectors: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Singular values padded with zeros, and their vectors, as rows, with an orthonormal
    completion.
    """
    missing = size - len(values)
    if not missing:
        return values, vectors
    rest = np.linalg.svd(vectors, full_matrices=True)[2][len(values) :]
    return np.concatenate([values, np.zeros(missing)]), np.concatenate([vectors, rest])


@dataclass(frozen=True, eq=False)
class Balanced:
    """A product in its balanced basis. `to`: float64 (r, r), what the first factor is multiplied
    by; `back`: its inverse; `first` (n, r), `second` (r, m): the factors there, with equal Gram
    matrices, the singular values of the product.
    """

    to: np.ndarray
    back: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def turn_to(self, target: Balanced) -> np.ndarray:
        """The nearest rotation of this basis to the target's (Schoenemann 1966), (r, r)."""
        left, _, right = np.linalg.svd(self.first.T @ target.first + self.second @ target.second.T)
        return left @ right


def balanced_turn(source: Factors, target: Factors, roundoff: float) -> list[np.ndarray]:
    """The map through the balanced basis, turned there from the source to the target by the nearest
    rotation. It is as well conditioned as the balance of the two, however unlike they are. Empty
    where a product has not full rank.
    """
    own, other = (balance(factors, roundoff) for factors in (source, target))
    if own is None or other is None:
        return []
    return [own.to @ own.turn_to(other) @ other.back]


def balance(factors: Factors, least: float) -> Balanced | None:
    """The balanced basis of a product, unique up to a rotation; None where the smallest of its r
    singular values is not above `least` times the largest.

    From the triangular factors of both alone, so that no condition is squared.
    """
    (one, upper), (two, other) = np.linalg.qr(factors[0]), np.linalg.qr(factors[1].T)
    if upper.shape[0] < upper.shape[1] or other.shape[0] < other.shape[1]:
        return None
    left, values, right = np.linalg.svd(upper @ other.T)
    if not values[-1] > least * values[0]:
        return None
    roots = np.sqrt(values)
    return Balanced(
        other.T @ right.T / roots,
        (left / roots).T @ upper,
        one @ (left * roots),
        (two @ (right.T * roots)).T,
    )


def balanced_pair(
    source: Factors, target: Factors, least: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Maps (r, r) of the source and of the target into one balanced basis: the symmetric one of the
    source, and the target's turned to it. None where a product has not full rank, see `balance`.

    For the pair the other way round the two bases differ by one rotation of both, so that nothing
    but a sign distinguishes source and target.
    """
    own, other = (balance(factors, least) for factors in (source, target))
    if own is None or other is None:
        return None
    left, sizes, right = np.linalg.svd(own.to)
    upright = right.T @ left.T
    return (left * sizes) @ left.T, other.to @ other.turn_to(own) @ upright


def nearest_monomial(matrix: np.ndarray) -> list[np.ndarray]:
    """The permutation with signs and powers of two next to a matrix; empty where its rows' largest
    entries are in one column.
    """
    columns = np.abs(matrix).argmax(1)
    entries = matrix[np.arange(len(matrix)), columns]
    if len(np.unique(columns)) < len(matrix) or not entries.all():
        return []
    nearest = np.zeros_like(matrix)
    nearest[np.arange(len(matrix)), columns] = np.sign(entries) * np.exp2(
        np.round(np.log2(np.abs(entries)))
    )
    return [nearest]


def fit_turns(
    source: Factors, target: Factors, rotary_size: int, signs: bool, roundoff: float
) -> FittedMap:
    """The same where positions turn coordinate j with j + rotary_size / 2: a complex factor for
    each pair, or a sign where `signs`.

    Coordinates that do not turn have any map between them, or a sign each.
    """
    half, size = rotary_size // 2, source[0].shape[1]
    matrix, conditions = np.zeros((size, size)), []
    pairs = [[number, number + half] for number in range(half)]
    for rows in pairs + ([[number] for number in range(rotary_size, size)] if signs else []):
        factor = _turn(_complex(source, rows), _complex(target, rows), signs, roundoff)
        conditions.append(1.0 if factor is not None else float("inf"))
        turn = 1.0 + 0.0j if factor is None else factor
        matrix[np.ix_(rows, rows)] = np.array([[turn.real, turn.imag], [-turn.imag, turn.real]])[
            : len(rows), : len(rows)
        ]
    free = np.arange(rotary_size, size)
    if len(free) and not signs:
        found = fit_map(
            (source[0][:, free], source[1][free]), (target[0][:, free], target[1][free]), roundoff
        )
        matrix[np.ix_(free, free)] = found.matrix
        conditions.append(found.condition)
    return FittedMap(matrix, distance(matrix, source, target), max(conditions))


def _complex(factors: Factors, rows: Sequence[int]) -> Factors:
    """What M multiplies, and what its dual does, of one pair of coordinates as complex numbers."""
    first, second = (
        part[0] + 1j * part[1] if len(part) == 2 else part[0] + 0j
        for part in (factors[0].T[rows], factors[1][rows])
    )
    return first, second


def _turn(source: Factors, target: Factors, sign: bool, roundoff: float) -> complex | None:
    """The factor of one pair, None where neither queries nor keys determine one.

    Queries are multiplied by it and keys divided by its conjugate. Its phase is that of the
    overlaps, its size the geometric mean of what both ask for.
    """
    lengths = [[float(np.linalg.norm(part)) for part in parts] for parts in (source, target)]
    overlaps = [np.vdot(one, other) for one, other in zip(source, target, strict=True)]
    products = [one * other for one, other in zip(*lengths, strict=True)]
    overlap = sum(
        each / product for each, product in zip(overlaps, products, strict=True) if product
    )
    if abs(overlap) <= roundoff:
        return None
    if sign:
        return complex(np.sign(overlap.real) or 1.0)
    ratios = [lengths[1][0] / lengths[0][0]] if products[0] else []
    ratios += [lengths[0][1] / lengths[1][1]] if products[1] else []
    factor = overlap / abs(overlap) * float(np.exp(np.mean(np.log(ratios))))
    angle = np.exp(0.5j * np.pi * np.round(np.angle(factor) / (0.5 * np.pi)))
    snapped = complex(np.round(angle.real), np.round(angle.imag)) * 2.0 ** np.round(
        np.log2(abs(factor))
    )

    def left(turn: complex) -> float:
        shares = [
            np.linalg.norm(source[0] * turn - target[0]),
            np.linalg.norm(source[1] / np.conj(turn) - target[1]),
        ]
        return math.hypot(
            *(
                float(share) / (length or 1.0)
                for share, length in zip(shares, lengths[1], strict=True)
            )
        )

    return min((1.0 + 0.0j, snapped, factor), key=left)
