"""The one exception for input that cannot be used, and what counts as damage to a file."""

from __future__ import annotations

import errno
import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")  # of a URL: what stands before the host

LENGTH_LIMIT = 500  # characters of a message

# What reading a damaged file raises, in Python and in the libraries that read for us. Snakemake,
# rules and renderers never meet these: only functions under `one_line` do.
DAMAGE: tuple[type[BaseException], ...] = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError),
    *(EOFError, RuntimeError, MemoryError, OSError, struct.error),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)
# Errors of libraries that this module need not load, by the names of their classes. A panic of a
# library in Rust is a BaseException.
DAMAGE_NAMES = {
    "SafetensorError",
    "StrictDataclassError",
    "PanicException",
    "MarkedYAMLError",
    "YAMLError",
}


class InputError(Exception):
    """Bad input: one line that names the file, key or tensor, what was expected, and what to do.

    Anything else that is raised is a defect of the program and keeps its traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(message: str) -> str:
    """The message on one line that any terminal and log can take, without the user and password of
    a URL.

    What a name in a file may hold (escape sequences of terminals, lone surrogates, invisible
    characters) is shown by its escape; of a message longer than LENGTH_LIMIT the two ends stay.
    """
    line = without_credentials(" ".join(message.split()))
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in line
    )
    if len(shown) <= LENGTH_LIMIT:
        return shown
    end = LENGTH_LIMIT // 3
    return f"{shown[: LENGTH_LIMIT - end - 5]} ... {shown[-end:]}"


def without_credentials(text: str) -> str:
    """The text without the user and password of the URLs in it."""
    return CREDENTIALS.sub("", text)


def is_damage(error: BaseException) -> bool:
    """Whether a reader's error speaks of its file rather than of a defect of the program.

    An Exception of no kind of its own is what the tokenizers library raises for a malformed file.
    """
    if isinstance(error, DAMAGE) or type(error) is Exception:
        return True
    return any(kind.__name__ in DAMAGE_NAMES for kind in type(error).__mro__)


Reading = TypeVar("Reading", bound=Callable[..., Any])


def one_line(what: str) -> Callable[[Reading], Reading]:
    """Decorator of a function whose first argument is a file or folder: damage to it raises
    InputError.

    `what` completes "cannot be read as ...". A full disk and the defects that no file explains (a
    name that does not exist, a failing import) pass.
    """

    def decorate(function: Reading) -> Reading:
        @wraps(function)
        def reading(path: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return function(path, *arguments, **options)
            except InputError:
                raise
            except BaseException as error:
                if not is_damage(error) or disk_full(error):
                    raise
                reason = str(error).partition("\n")[0] or type(error).__name__
                place = os.fspath(path) if isinstance(path, str | os.PathLike) else str(path)
                raise InputError(
                    f"{place}: cannot be read as {what} ({reason[:200]}); fetch it again"
                ) from error

        return reading  # type: ignore[return-value]

    return decorate


def disk_full(error: BaseException) -> bool:
    """Whether the error says that no space is left; safetensors passes on the words without the
    number.
    """
    return getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)
