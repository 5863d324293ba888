"""cov64 and tsqr64 against torch's X.T @ X, numpy's QR and scikit-learn's IncrementalPCA: seconds and accuracy, in one run.

How to run it: benchmarks/README.md
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.decomposition import IncrementalPCA

from normgauge.moments import Accumulator, Moments
from side_by_side import interleaved, write_results

N, D, CHUNK = 8192, 768, 2048


def planted(condition: float) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) centred samples with singular values spread geometrically over `condition`, and those values, ascending."""
    rng = np.random.default_rng(0)
    sigma = np.geomspace(1.0, condition, D)
    left, _ = np.linalg.qr(np.hstack([np.ones((N, 1)), rng.normal(size=(N, D))]))
    right, _ = np.linalg.qr(rng.normal(size=(D, D)))
    return (left[:, 1:] * sigma) @ right.T, sigma


def accumulate(method: str, x: torch.Tensor) -> Moments:
    accumulator = Accumulator(method, D)
    for chunk in x.split(CHUNK):
        accumulator.update(chunk)
    return accumulator.moments()


def incremental_pca(x: np.ndarray) -> np.ndarray:
    """Singular values, ascending."""
    return IncrementalPCA(batch_size=CHUNK).fit(x).singular_values_[::-1]


def accuracy_rows() -> list[dict[str, object]]:
    rows = []
    for condition in (1e3, 3e6, 1.5e9):
        x, sigma = planted(condition)
        measured = {method: accumulate(method, torch.from_numpy(x)).spectrum()[0] for method in ("cov32", "cov64", "tsqr64")}
        measured["IncrementalPCA"] = incremental_pca(x)
        for name, values in measured.items():
            rows.append(
                {
                    "what": "accuracy",
                    "condition": f"{condition:.1e}",
                    "candidate": name,
                    "sigma_min_relative_error": f"{abs(values[0] / sigma[0] - 1):.1e}",
                    "largest_error_over_sigma_max": f"{np.abs(values - sigma).max() / sigma[-1]:.1e}",
                    "seconds": "",
                    "ratio_to_cov64": "",
                    "ratio_to_tsqr64": "",
                }
            )
    return rows


def speed_rows() -> list[dict[str, object]]:
    x, _ = planted(3e6)
    tensor, half = torch.from_numpy(x), torch.from_numpy(x).float()
    seconds = interleaved(
        {
            "cov64 accumulate": lambda: accumulate("cov64", tensor),
            "cov64 accumulate from float32": lambda: accumulate("cov64", half),
            "torch X.T @ X float64": lambda: tensor.T @ tensor,
            "cov64 accumulate + spectrum": lambda: accumulate("cov64", tensor).spectrum(),
            "tsqr64 accumulate + spectrum": lambda: accumulate("tsqr64", tensor).spectrum(),
            "tsqr64 accumulate": lambda: accumulate("tsqr64", tensor),
            "IncrementalPCA": lambda: incremental_pca(x),
        },
        repeats=7,
    )
    cov, tsqr = seconds["cov64 accumulate + spectrum"], seconds["tsqr64 accumulate + spectrum"]
    return [
        {
            "what": "speed",
            "condition": "",
            "candidate": name,
            "sigma_min_relative_error": "",
            "largest_error_over_sigma_max": "",
            "seconds": f"{value:.4f}",
            "ratio_to_cov64": f"{value / (seconds['cov64 accumulate'] if 'torch' in name else cov):.2f}",
            "ratio_to_tsqr64": f"{value / tsqr:.2f}",
        }
        for name, value in seconds.items()
    ]


if __name__ == "__main__":
    write_results("moments", accuracy_rows() + speed_rows())
