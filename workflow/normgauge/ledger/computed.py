"""Claims that need no run: arithmetic written out in the claim, and what a function computes."""

from __future__ import annotations

import ast
import hashlib
import math
import operator
from collections.abc import Callable, Mapping

import numpy as np

from normgauge.errors import InputError

_OPERATIONS: Mapping[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_NAMES: Mapping[str, float] = {"pi": math.pi}
_CALLS: Mapping[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "log10": math.log10,
    "max": max,
    "mean": lambda *values: float(np.mean(values)),
    "min": min,
    "sqrt": math.sqrt,
    "std": lambda *values: float(np.std(values, ddof=1)),
}


def gpt2_probe_hash() -> str:
    """First 16 hexadecimal digits of the sha256 of the probe ids of exact recovery's paper.

    8 sequences of 1,024 ids of GPT-2's 50,257, drawn with seed 32, as little-endian int64. The
    paper prints hash and seed; the generator and the byte order are those that give it.
    """
    ids = np.random.default_rng(32).integers(0, 50257, (8, 1024)).astype("<i8")
    return hashlib.sha256(ids.tobytes()).hexdigest()[:16]


FUNCTIONS: Mapping[str, Callable[[], float | str]] = {"gpt2_probe_hash": gpt2_probe_hash}


def computed(text: str) -> float | str:
    """What a claim computes: a function by its name, or an expression.

    Example: computed("769 * log10(2 * 2**-28)") is -6250.3. Raises InputError for anything that is
    neither.
    """
    if text in FUNCTIONS:
        return FUNCTIONS[text]()
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ArithmeticError, TypeError, ValueError) as error:
        raise InputError(
            f"computed: {text!r}: {error}; expected one of {', '.join(FUNCTIONS)}, or arithmetic "
            f"with {', '.join([*_NAMES, *_CALLS])}"
        ) from error


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(operand))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLS:
            return _CALLS[name](*map(_value, arguments))
    raise ValueError(f"{ast.unparse(node)} is no such arithmetic")
