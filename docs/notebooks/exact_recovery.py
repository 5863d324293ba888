# %% [markdown]
# # Notebook: exact recovery
#
# The study [exact recovery](../exact_recovery.md) in small. Behind a LayerNorm the least squares that would read
# a layer's weights from its inputs and outputs are singular: the dead direction is missing. But weights are stored on a
# coarse grid, float16 here. The grid says which of the many solutions is the stored one.

# %%
import torch

torch.manual_seed(0)
d = 16
gain = (1 + 0.2 * torch.randn(d)).double()
weights = torch.randn(d).half()

# %%
x = torch.nn.functional.layer_norm(torch.randn(400, d).double(), (d,)) * gain
y = x @ weights.double()
solution = torch.linalg.lstsq(x, y, driver="gelsd").solution
print(
    f"rank {torch.linalg.matrix_rank(x)} of {d}; largest error of least squares: {(solution - weights.double()).abs().max():.2f}"
)

# %% [markdown]
# Every solution is $w = w_0 + t\,v$ with $v = (1/\gamma)/|1/\gamma|$ and an unknown number $t$. Move along this line. The
# distance to the float16 grid, in grid spacings, vanishes at one place only.

# %%
line = (1 / gain) / (1 / gain).norm()


def off_grid(t):
    """The largest distance from the grid, in units of each coordinate's spacing."""
    w = solution + t * line
    spacing = torch.exp2(torch.floor(torch.log2(w.abs())) - 10)
    return ((w / spacing - (w / spacing).round()).abs()).max().item()


# candidates: the places on which the first coordinate is a float16 number
first = (
    torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).double()
)
first = first[first.isfinite() & (first.abs() < 8)]
places = (first - solution[0]) / line[0]
residuals = torch.tensor([off_grid(t) for t in places])
best = places[residuals.argmin()]
recovered = (solution + best * line).half()
print("bit for bit:", torch.equal(recovered, weights))
assert torch.equal(recovered, weights)

# %%
from matplotlib import pyplot

figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
axes.semilogy(places, residuals.clamp(min=1e-16), ".", markersize=2)
axes.semilogy([best], [residuals.min().clamp(min=1e-16)], "o", label="the stored weights")
axes.set(
    xlabel="place t on the line", ylabel="distance from the grid", xlim=(best - 0.5, best + 0.5)
)
axes.legend()

# %% [markdown]
# All other places are wrong by a good part of a spacing. The command does this for every tensor of a block, with
# certificates; `--demo` makes a small block and needs seconds.

# %% language="bash"
# normgauge recover --demo
