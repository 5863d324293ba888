"""What a user's matplotlibrc may hold: settings that would change a figure's bytes, or call
LaTeX.
"""

from __future__ import annotations

from typing import Any

USERS: dict[str, Any] = {
    "text.usetex": True,
    "axes.grid": True,
    "axes.facecolor": "0.9",
    "savefig.bbox": "tight",
    "savefig.dpi": 300,
    "figure.facecolor": "black",
    "figure.constrained_layout.use": True,
    "lines.linewidth": 4.0,
    "patch.linewidth": 3.0,
    "xtick.direction": "in",
    "ytick.right": True,
    "image.cmap": "gray",
    "path.simplify_threshold": 1.0,
    "svg.fonttype": "none",
    "pdf.compression": 0,
    "mathtext.default": "regular",
}
