# %% [markdown]
# # Align before you merge
#
# Two checkpoints may compute the same function in different coordinates. Averaging their weights then gives nonsense.
# Bring one into the coordinates of the other first.
#
# Two fine-tunes of one base normally share its coordinates: `normgauge compare A B` says whether they do ("the
# coordinates are the same"), and then there is nothing to align. Models that were trained apart have no common
# coordinates at all; what aligning saves there is measured in [signed permutations](../signed_permutation.md).
#
# This page makes such a pair: B is A with its coordinates renamed, and then trained a little further (here: a small
# random change).

# %%
import copy

import torch
import transformers

import normgauge

torch.manual_seed(0)
config = transformers.GPT2Config(
    n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0
)
a = transformers.GPT2LMHeadModel(config).eval()
b = normgauge.transform(a, normgauge.random_gauge(a, seed=1))
with torch.no_grad():
    for parameter in b.parameters():
        parameter += 0.01 * parameter.std(correction=0) * torch.randn_like(parameter)


# %%
def average(first, second):
    merged = copy.deepcopy(first)
    with torch.no_grad():
        for target, other in zip(merged.parameters(), second.parameters(), strict=True):
            target.add_(other).div_(2)
    return merged


def distance(model):
    """How far the outputs are from those of A, relative to their size."""
    ids = torch.randint(100, (8, 64), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted, found = a(ids).logits, model(ids).logits
    return ((found - wanted).norm() / wanted.norm()).item()


print(f"B itself: {distance(b):.3f}   average of A and B: {distance(average(a, b)):.3f}")

# %% [markdown]
# B still computes nearly what A does. The average of the two does not: it adds coordinates that do not belong together.
# `match` finds the change of coordinates from activations, and says how sure it is.

# %%
found = normgauge.match(a, b)
print("all of it certain:", found.certain)
print(f"distance of the weights: {found.change.before:.3f} before, {found.change.after:.3f} after")

# %%
aligned = normgauge.transform(b, found.gauge.inverse())
print(f"average of A and B in A's coordinates: {distance(average(a, aligned)):.3f}")
assert distance(average(a, aligned)) < distance(b) < distance(average(a, b))

# %% [markdown]
# The average is now as good as B, or better: the random changes are halved.
#
# From a shell. The status is 1 where not all was matched with certainty, so that a script can stop there.

# %%
a.save_pretrained("a")
b.save_pretrained("b")

# %% language="bash"
# normgauge align a b aligned    # writes B in A's coordinates to the folder aligned

# %% [markdown]
# ## With mergekit
# The folder is an ordinary checkpoint, so [mergekit](https://github.com/arcee-ai/mergekit) merges it with A. Two
# recipes, in `docs/recipes/`; they name the folders `./a` and `./aligned`:
#
# ```yaml
# merge_method: linear
# models:
#   - {model: ./a, parameters: {weight: 0.5}}
#   - {model: ./aligned, parameters: {weight: 0.5}}
# dtype: float32
# ```
#
# ```yaml
# merge_method: slerp
# base_model: ./a
# models:
#   - {model: ./a}
#   - {model: ./aligned}
# parameters: {t: 0.5}
# dtype: float32
# ```
#
# ```
# mergekit-yaml docs/recipes/linear.yaml merged --no-write-model-card
# ```
#
# mergekit is not installed with normgauge. `NORMGAUGE_MERGEKIT=/path/to/mergekit-yaml pytest tests/unit/test_mergekit.py`
# runs both recipes and compares each tensor with the method's formula.

# %% [markdown]
# An adapter, a sparse autoencoder, steering vectors or an optimizer's state that belongs to B is moved the same way:
# `normgauge carry ARTIFACT --from b --to a OUT`. What else a model does not notice:
# [signed permutations](../signed_permutation.md).
