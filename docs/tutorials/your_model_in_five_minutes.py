# %% [markdown]
# # Your model in five minutes
#
# Give normgauge a model. It says along which directions the activations are dead, and how their spectrum changes with
# depth. Nothing is downloaded and no settings are needed: random tokens are enough.
#
# Here the model is a GPT-2 with random weights, so that this page runs anywhere. Take your own instead:
# `transformers.AutoModelForCausalLM.from_pretrained("folder or hub id")`.

# %%
import torch
import transformers

import normgauge

torch.manual_seed(0)
config = transformers.GPT2Config(
    n_layer=3, n_embd=32, n_head=4, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0
)
model = transformers.GPT2LMHeadModel(config)
with torch.no_grad():
    for name, gain in model.named_parameters():
        if "ln_" in name and name.endswith("weight"):
            gain.copy_(1 + 0.3 * torch.randn_like(gain))

# %%
frame = normgauge.fingerprint(model)
frame[["site", "n", "d", "sigma_active_min", "null_dimension", "cos_gamma_inv"]]

# %% [markdown]
# One row per site, a place where activations are measured: `n` positions, `d` coordinates, the smallest singular value above the rounding floor, the number of
# singular values at or below it, and the cosine between the direction of least variation and 1/γ, one over the gains
# of the norm.
#
# **Read the last row first.** LayerNorm subtracts the mean, so its output $y = \gamma \odot \hat{x} + \beta$ obeys
#
# $$\sum_{i=1}^{d} \frac{y_i - \beta_i}{\gamma_i} = \sum_{i=1}^{d} \hat{x}_i = 0$$
#
# for every input. One direction is dead, and it is 1/γ. The cosine is 1 up to rounding:

# %%
terminal = frame[frame.tap == "terminal_norm"].iloc[0]
assert terminal.null_dimension == 1
print(f"1 - cosine = {1 - terminal.cos_gamma_inv:.0e}")

# %% [markdown]
# The directions themselves are in the weights. An adapter or a sparse autoencoder that reads along them learns nothing.

# %%
directions = normgauge.dead_directions(model)
for name, vectors in directions.items():
    print(name, vectors.shape)

# %% [markdown]
# **Then the depth.** How does the least variation of the residual stream grow or shrink from block to block?

# %%
from matplotlib import pyplot

stream = frame[frame.tap.isin(["embedding", "output"])]
figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
axes.plot(range(len(stream)), stream.fixed_rank_ratio, marker="o")
axes.axhline(1, color="grey", linewidth=0.8)
axes.set(xlabel="block (0: embedding)", ylabel="ratio to the embedding", xticks=range(len(stream)))

# %% [markdown]
# The same from a shell, for a folder, a `.gguf` file or a hub id:

# %%
model.save_pretrained("my-model")

# %% language="bash"
# normgauge fingerprint my-model

# %% [markdown]
# Next: [align before you merge](align_before_you_merge.md), or what the numbers mean:
# [dead directions](../dead_directions.md).
