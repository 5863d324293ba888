# %% [markdown]
# # Notebook: redundancy
#
# The study [redundancy](../redundancy.md) in small: in how many directions can the parameters move without any
# output changing? That number is the nullity of the Jacobian of all outputs by all parameters. A tiny model is small
# enough to compute it.

# %%
import torch
import transformers

torch.manual_seed(0)
config = transformers.GPT2Config(
    n_layer=1,
    n_embd=4,
    n_head=2,
    vocab_size=6,
    n_positions=4,
    activation_function="gelu",
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=0,
    attn_implementation="eager",
)
model = transformers.GPT2LMHeadModel(config).double().eval()
for parameter in model.parameters():
    parameter.data.normal_(std=0.5)
parameters = {name: value.detach() for name, value in model.named_parameters()}
print(sum(value.numel() for value in parameters.values()), "parameters")

# %%
ids = torch.randint(6, (100, 4))


def outputs(values):
    return torch.func.functional_call(model, values, (ids,)).logits.flatten()


jacobian = torch.func.jacrev(outputs, chunk_size=100)(parameters)
matrix = torch.cat([jacobian[name].flatten(1) for name in parameters], dim=1)
values = torch.linalg.svdvals(matrix)
floor = values[0] * 1e-12
nullity = int((values < floor).sum())
print("directions without effect:", nullity, "of", matrix.shape[1])

# %% [markdown]
# There is a clear gap between what counts and what is zero.

# %%
from matplotlib import pyplot

figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
axes.semilogy(values / values[0], ".")
axes.axhline(1e-12, color="grey", linestyle="--")
axes.set(xlabel="number", ylabel="singular value over the largest", ylim=(1e-20, 3))

# %% [markdown]
# One family that explains part of them: in each head the value map may be multiplied by an invertible matrix $M$ and the
# output map by its inverse, $W_V \to W_V M$ and $W_O \to M^{-1} W_O$. With $d_h = 2$ these are $d_h^2 = 4$ directions per
# head. Their tangents lie in the null space:


# %%
def tangent(head, row, column):
    """The derivative of the parameters along M = 1 + t E, with one entry of E equal to one."""
    change = {name: torch.zeros_like(value) for name, value in parameters.items()}
    entry = torch.zeros(2, 2, dtype=torch.float64)
    entry[row, column] = 1
    own = slice(2 * head, 2 * head + 2)
    value = slice(8 + 2 * head, 8 + 2 * head + 2)
    attention = "transformer.h.0.attn."
    change[attention + "c_attn.weight"][:, value] = (
        parameters[attention + "c_attn.weight"][:, value] @ entry
    )
    change[attention + "c_attn.bias"][value] = parameters[attention + "c_attn.bias"][value] @ entry
    change[attention + "c_proj.weight"][own] = -entry @ parameters[attention + "c_proj.weight"][own]
    return torch.cat([change[name].flatten() for name in parameters])


tangents = torch.stack([tangent(h, i, j) for h in range(2) for i in range(2) for j in range(2)])
effect = (matrix @ tangents.T).norm(dim=0) / (values[0] * tangents.norm(dim=1))
print(
    f"independent directions: {torch.linalg.matrix_rank(tangents)}; largest effect: {effect.max():.0e}"
)
assert effect.max() < 1e-12

# %% [markdown]
# Query and key maps have the same freedom. The rest comes from the norms, whose gains, biases and null lines fold into
# the maps that read and write the stream. `snakemake redundancy` counts all families, and shows that for every small
# model the count equals the measured nullity.
