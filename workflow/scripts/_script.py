"""What every script does around its one call of the library: a quiet environment, threads, a log,
one-line errors.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from normgauge.errors import InputError, disk_full, without_credentials


class _Both:
    """The terminal, which also writes to the log as long as the log can be written."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self.terminal, self.log = terminal, log

    def write(self, text: str) -> int:
        text = without_credentials(text)
        self.terminal.write(text)
        self.terminal.flush()
        with suppress(OSError):  # a full disk: the terminal has the message
            self.log.write(text)
            self.log.flush()
        return len(text)

    def flush(self) -> None:
        self.terminal.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)


def _open_log(path: Path) -> TextIO:
    """The job's log, or nowhere when the disk has no room for it. Names that are no UTF-8 are
    written by their escapes.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        print(f"{path}: no log can be written ({error.strerror})", file=sys.stderr)
        return open(os.devnull, "w", encoding="utf-8")


@contextmanager
def reporting(job: Any, online: bool = False) -> Iterator[None]:
    """Run the body of a script for the Snakemake job `job`.

    Import the library inside the body: libraries read these settings of the environment when they
    load. stderr goes to the job's log as well; stdin is empty, so that nothing a library asks is
    answered. An InputError becomes one line
    `error: ...` and exit status 1; any other exception keeps its traceback, in the log too.
    """
    os.environ.update(
        OMP_NUM_THREADS=str(job.threads),
        OPENBLAS_NUM_THREADS=str(job.threads),
        CUBLAS_WORKSPACE_CONFIG=":4096:8",  # what torch's deterministic kernels ask of a GPU
        # torch asks for huge pages: clearing small ones was a fifth of the time of a float64 pass
        THP_MEM_ALLOC_ENABLE="1",
        HF_HUB_OFFLINE=str(int(not online)),
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        TRANSFORMERS_VERBOSITY="error",
        TOKENIZERS_PARALLELISM="false",
        # of what a damaged tokenizer does to its library, the line of the error says enough
        RUST_BACKTRACE="0",
    )
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # Loading the libraries makes half a million lasting objects: the collector would go through
    # them again and again, and at the end.
    gc.disable()
    _close_stdin()
    terminal, log = sys.stderr, _open_log(Path(job.log[0]))
    sys.stderr = _Both(terminal, log)
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # the panic of a library in Rust is no Exception
        if disk_full(error):
            print("error: disk full: free space and rerun", file=sys.stderr)
            sys.exit(1)
        with suppress(OSError):
            log.write(without_credentials(traceback.format_exc()))
        raise
    finally:
        sys.stderr = terminal
        with suppress(OSError):
            log.close()
        gc.freeze()


def _close_stdin() -> None:
    """Put an empty file in the place of stdin, for this process and for those that it starts."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null:  # 0 where the job was started without any stdin
        os.close(null)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - open for the job's life


def set_arithmetic(threads: int) -> None:
    """Give torch the job's threads and deterministic kernels, so that a rerun gives the same bytes;
    for after the library's import.
    """
    import torch

    _collect_garbage_again()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


def _collect_garbage_again() -> None:
    """End the rest that `reporting` began, without ever going through what the import left. Scripts
    that do not compute stay at rest.
    """
    gc.freeze()
    gc.enable()


def named_files(given) -> dict[str, list[Path]]:
    """The named inputs of a job, each a list of files."""
    return {
        name: [Path(files)] if isinstance(files, str) else list(map(Path, files))
        for name, files in given.items()
    }
