"""cov64 and tsqr64 against torch's X.T @ X, scipy's dsyrk and scikit-learn's IncrementalPCA:
seconds and accuracy, in one run.

How to run it: benchmarks/README.md
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import flint
import numpy as np
import torch
from scipy.linalg.blas import dsyrk
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from normgauge.moments import Accumulator, Moments, Workspace
from side_by_side import rounds, write_results

N, D, CHUNK = 8192, 768, 2048
# (threads, samples): repeats. Jobs of the pipeline have one thread; 8192 samples are the
# calibration's default, 131072 table 1's, as a stream that repeats the shorter one's samples.
SPEEDS = {(1, N): 15, (2, N): 15, (2, 16 * N): 3}
# The fastest round is the one that other work on the machine disturbed least (timeit's advice); the
# median is what one gets.
STATISTICS = {"median": statistics.median, "fastest": min}
CONDITIONS = (1e3, 3e6, 1.5e9)
WORKSPACE = Workspace()  # as in a capture, where all sites share one


def general_position(condition: float) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) centred samples with singular values spread geometrically over `condition`, and those
    values, ascending.

    Storing the samples in float64 perturbs each singular value by the rounding of the largest.
    """
    rng = np.random.default_rng(0)
    sigma = np.geomspace(1.0, condition, D)
    left, _ = np.linalg.qr(np.hstack([np.ones((N, 1)), rng.normal(size=(N, D))]))
    right, _ = np.linalg.qr(rng.normal(size=(D, D)))
    return (left[:, 1:] * sigma) @ right.T, sigma


def massive_coordinates(condition: float) -> tuple[np.ndarray, np.ndarray]:
    """(768, 192) samples, their scales spread over `condition` along coordinates in random order,
    and singular values from 300 bits.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(768, 192)) * rng.permutation(np.geomspace(1.0, condition, 192))
    flint.ctx.prec = 300
    rows = flint.arb_mat(x.tolist())
    mean = flint.arb_mat([[1] * len(x)]) * rows / len(x)
    scatter = rows.transpose() * rows - mean.transpose() * mean * len(x)
    return x, np.sqrt(
        np.array(sorted(float(value.real) for value in flint.acb_mat(scatter).eig(multiple=True)))
    )


def chunks(x: torch.Tensor, samples: int) -> Iterator[torch.Tensor]:
    for _ in range(samples // len(x)):  # passes over the same samples
        yield from x.split(CHUNK)


def accumulate(method: str, x: torch.Tensor, samples: int) -> Moments:
    accumulator = Accumulator(method, x.shape[1], WORKSPACE)
    for chunk in chunks(x, samples):
        accumulator.update(chunk)
    return accumulator.moments()


def incremental_pca(x: torch.Tensor, samples: int) -> np.ndarray:
    """Singular values, ascending."""
    model = IncrementalPCA()
    for chunk in chunks(x, samples):
        model.partial_fit(chunk.numpy(), check_input=False)
    return model.singular_values_[::-1]


def products(x: torch.Tensor, samples: int) -> None:
    for _ in range(samples // len(x)):
        x.T @ x


def updates_alone(x: torch.Tensor, samples: int) -> None:
    """The symmetric rank-k updates of cov64 and nothing else."""
    scatter = np.zeros((D, D), order="F")
    for chunk in chunks(x, samples):
        scatter = dsyrk(1.0, chunk.numpy().T, beta=1.0, c=scatter, overwrite_c=1)


def accuracy_rows() -> list[dict[str, object]]:
    rows = []
    for name, draw in (
        ("general position", general_position),
        ("massive coordinates", massive_coordinates),
    ):
        for condition in CONDITIONS:
            array, sigma = draw(condition)
            x = torch.from_numpy(array)
            measured = {
                method: accumulate(method, x, len(x)).spectrum().values
                for method in ("cov32", "cov64", "tsqr64")
            }
            measured["IncrementalPCA"] = incremental_pca(x, len(x))
            for candidate, values in measured.items():
                rows.append(
                    {
                        "what": "accuracy",
                        "threads": torch.get_num_threads(),
                        "samples": len(x),
                        "spectrum": name,
                        "condition": f"{sigma[-1] / sigma[0]:.1e}",
                        "candidate": candidate,
                        "sigma_min_relative_error": f"{abs(values[0] / sigma[0] - 1):.1e}",
                        "largest_error_over_sigma_max": format(
                            np.abs(values - sigma).max() / sigma[-1], ".1e"
                        ),
                    }
                    | {
                        f"{key}_{statistic}": ""
                        for statistic in STATISTICS
                        for key in ("seconds", "ratio_to_cov64", "ratio_to_tsqr64")
                    }
                )
    return rows


def decompose(moments: Moments, directions: int) -> tuple[np.ndarray, np.ndarray]:
    """What the fingerprint takes from a site: all singular values, and the bottom direction or
    more.
    """
    spectrum = moments.spectrum()
    return spectrum.values, spectrum.bottom(directions)


def candidates(
    x: torch.Tensor, single: torch.Tensor, samples: int
) -> dict[str, Callable[[], object]]:
    return {
        "torch X.T @ X float64": lambda: products(x, samples),
        "scipy dsyrk": lambda: updates_alone(x, samples),
        "cov64": lambda: accumulate("cov64", x, samples),
        "cov64 from float32": lambda: accumulate("cov64", single, samples),
        "cov64 + spectrum": lambda: decompose(accumulate("cov64", x, samples), 1),
        "cov64 + spectrum and all directions": lambda: decompose(
            accumulate("cov64", x, samples), D
        ),
        "tsqr64": lambda: accumulate("tsqr64", x, samples),
        "tsqr64 + spectrum": lambda: decompose(accumulate("tsqr64", x, samples), 1),
        "IncrementalPCA": lambda: incremental_pca(x, samples),
    }


def speed_rows(threads: int, samples: int, repeats: int) -> list[dict[str, object]]:
    x = torch.from_numpy(general_position(3e6)[0])
    single = x.float()
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        seconds = rounds(candidates(x, single, samples), repeats)
    return [
        {
            "what": "speed",
            "threads": threads,
            "samples": samples,
            "spectrum": "",
            "condition": "",
            "candidate": name,
        }
        | {"sigma_min_relative_error": "", "largest_error_over_sigma_max": ""}
        | {
            key: value
            for statistic in STATISTICS
            for key, value in compared(name, seconds, statistic).items()
        }
        for name in seconds
    ]


def compared(name: str, seconds: dict[str, list[float]], statistic: str) -> dict[str, str]:
    """One candidate's seconds and how many times those of cov64 and tsqr64 they are, each candidate
    by its own median or fastest round.
    """
    taken = {candidate: STATISTICS[statistic](values) for candidate, values in seconds.items()}
    # X.T @ X has no spectrum either; IncrementalPCA has one, with all its directions
    suffix = " + spectrum" if name == "IncrementalPCA" else ""
    ratios = {
        f"ratio_to_{method}_{statistic}": f"{taken[name] / taken[method + suffix]:.2f}"
        for method in ("cov64", "tsqr64")
    }
    return {f"seconds_{statistic}": f"{taken[name]:.4f}"} | ratios


if __name__ == "__main__":
    rows = accuracy_rows()
    for (threads, samples), repeats in SPEEDS.items():
        rows += speed_rows(threads, samples, repeats)
    write_results("moments", rows)
