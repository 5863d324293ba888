# %% [markdown]
# # Is this neuron a name?
#
# "Coordinate 17 of the residual stream fires on dates." Before such a claim is about the model, and not about one copy
# of its weights, ask: does the name survive a change of coordinates that the model does not notice?

# %%
import torch
import transformers

import normgauge

torch.manual_seed(0)
config = transformers.LlamaConfig(
    num_hidden_layers=3,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=100,
    max_position_embeddings=64,
)
model = transformers.LlamaForCausalLM(config).eval()
gauge = normgauge.random_gauge(model, seed=1)
renamed = normgauge.transform(model, gauge)

# %%
ids = torch.randint(100, (16, 64))
with torch.no_grad():
    before = model(ids, output_hidden_states=True)
    after = renamed(ids, output_hidden_states=True)
print(f"largest change of an output: {(before.logits - after.logits).abs().max():.1e}")

# %% [markdown]
# The outputs are the same up to rounding. Now name the five most active coordinates of the middle block in both copies.


# %%
def most_active(hidden, count=5):
    return hidden.square().mean((0, 1)).topk(count).indices.tolist()


names = most_active(before.hidden_states[2])
others = most_active(after.hidden_states[2])
print("in the model:         ", names)
print("in the renamed copy:  ", others)
print("the first ones, moved:", gauge.elements["residual"].target[names].tolist())
assert set(gauge.elements["residual"].target[names].tolist()) == set(others)

# %% [markdown]
# The names differ. The gauge, which is the change of coordinates that made the copy, says how. So the number of a
# residual coordinate says nothing about the function: a coordinate in an RMSNorm model can be renamed, and its sign
# turned, without a trace. The units of a feed-forward layer can be renamed as well. A claim about "neuron 1234" is one
# about this very file: publish the file's sha256 beside it, and carry the number to another copy by the gauge. Some
# claims need neither: those about directions, subspaces and what is computed from them.
#
# `normgauge audit` asks this for several kinds of claim at once, feed-forward units among them:

# %%
model.save_pretrained("my-model")

# %% language="bash"
# normgauge audit my-model --top 8

# %% [markdown]
# "Names that stay" near "chance" means: the claim belongs to this copy. "Found again by the gauge" is the control: the
# same claim, carried by the change of coordinates, is found again. More: [signed permutations](../signed_permutation.md).
