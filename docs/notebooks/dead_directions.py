# %% [markdown]
# # Notebook: dead directions
#
# The study [dead directions](../dead_directions.md) in small: LayerNorm kills one direction, RMSNorm none, and collapsed
# gains hide it.

# %%
import torch
import transformers

import normgauge

torch.manual_seed(0)
sizes = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
gpt2 = transformers.GPT2Config(n_layer=2, n_embd=24, n_head=4, n_positions=64, **sizes)
llama = transformers.LlamaConfig(
    num_hidden_layers=2,
    hidden_size=24,
    intermediate_size=48,
    num_attention_heads=4,
    max_position_embeddings=64,
    **sizes,
)
models = {
    "LayerNorm": transformers.GPT2LMHeadModel(gpt2),
    "RMSNorm": transformers.LlamaForCausalLM(llama),
}


def scatter_gains(model, width=0.3):
    """Gains away from one, as training leaves them."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ("ln_" in name or "norm" in name) and name.endswith("weight"):
                value.copy_(1 + width * torch.randn_like(value))


for model in models.values():
    scatter_gains(model)

# %% [markdown]
# The cosine of the direction of least variation with 1/γ, behind the last norm. By chance it would be about
# $1/\sqrt{d}$.

# %%
rows = {
    name: normgauge.fingerprint(model).set_index("tap").loc["terminal_norm"]
    for name, model in models.items()
}
for name, row in rows.items():
    print(
        f"{name:10} cosine {row.cos_gamma_inv:.6f}   dead directions: {row.null_dimension}   chance: {24**-0.5:.2f}"
    )
assert rows["LayerNorm"].null_dimension == 1
assert rows["RMSNorm"].null_dimension == 0

# %% [markdown]
# The dead direction is in the weights: no forward pass is needed. In the activations, the length along it is rounding.

# %%
model = models["LayerNorm"].eval()
(vector,) = normgauge.dead_directions(model)["transformer.ln_f"]
seen = []
hook = model.transformer.ln_f.register_forward_hook(
    lambda module, inputs, output: seen.append(output.detach())
)
with torch.no_grad():
    model(torch.randint(100, (32, 64)))
hook.remove()
centred = seen[0].flatten(0, 1).double()
centred -= centred.mean(0)
along = centred @ torch.from_numpy(vector)
print(
    f"standard deviation along 1/gamma: {along.std():.1e}; along a coordinate: {centred.std(0).mean():.1f}"
)

# %% [markdown]
# The spectrum behind the last norm. The LayerNorm model has one singular value far below the others.

# %%
from matplotlib import pyplot

figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
values = torch.linalg.svdvals(centred)
axes.semilogy(range(1, len(values) + 1), values, "o")
axes.axhline(
    rows["LayerNorm"].forward_floor,
    color="grey",
    linestyle="--",
    label="rounding floor of the forward pass",
)
axes.set(xlabel="number", ylabel="singular value")
axes.legend()

# %% [markdown]
# A gain of zero makes its own axis dead, and takes the place of 1/γ.

# %%
with torch.no_grad():
    model.transformer.ln_f.weight[5] = 0
(axis,) = normgauge.dead_directions(model)["transformer.ln_f"]
print("the only coordinate of the dead direction:", axis.nonzero()[0].tolist())
