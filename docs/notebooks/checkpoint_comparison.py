# %% [markdown]
# # Notebook: checkpoint comparison
#
# The study [checkpoint comparison](../checkpoint_comparison.md) in small: what differs between two checkpoints,
# told apart from a change of coordinates and from chance?
#
# B is A with one head changed, and then written in other coordinates.

# %%
import copy

import torch
import transformers

import normgauge

torch.manual_seed(0)
config = transformers.GPT2Config(
    n_layer=3, n_embd=32, n_head=4, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0
)
a = transformers.GPT2LMHeadModel(config)
b = copy.deepcopy(a)
with torch.no_grad():
    b.transformer.h[1].attn.c_attn.weight[:, :8] *= 1.3  # the queries of head 0 in block 2
b = normgauge.transform(b, normgauge.random_gauge(b, seed=1))

# %% [markdown]
# Compared value by value, everything seems to have changed.

# %%
pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
print(f"{sum(not torch.equal(x, y) for x, y in pairs)} tensors differ")

# %%
changes = normgauge.compare(a, b)
changes.alignment[["group", "space", "moved", "residual_before", "residual_after"]].head(4)

# %% [markdown]
# The gauge was found and taken out. What is left is one head.

# %%
for component in changes.decision["components"]:
    print(
        f"block {component['layer']}, {component['part']}, head {component['head']}: {component['role']}"
    )
assert [(each["layer"], each["head"]) for each in changes.decision["components"]] == [(2, 0)]

# %%
from matplotlib import pyplot

heads = changes.kernels[changes.kernels.statistic == "qk_relative"]
image = heads.pivot_table(index="block", columns="head", values="change").to_numpy()
figure, axes = pyplot.subplots(figsize=(5, 2.6), layout="constrained")
shown = axes.imshow(image, cmap="cividis", vmin=0)
axes.set(xlabel="head", ylabel="block", xticks=range(4), yticks=range(3), yticklabels=[1, 2, 3])
figure.colorbar(shown, label="relative change of the query-key map")

# %% [markdown]
# Each test has its null: random changes of the same size. Only what survives the correction for all tests counts.

# %%
changes.nulls.sort_values("p")[
    ["statistic", "block", "head", "observed", "p", "familywise_p", "significant"]
].head(4)
