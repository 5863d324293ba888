# %% [markdown]
# # Notebook: signed permutations
#
# The study [signed permutations](../signed_permutation.md) in small: which changes of coordinates keep a model's
# function? Behind an RMSNorm every coordinate may change its place and its sign. Behind a LayerNorm one sign is common
# to all.

# %%
import torch
import transformers

import normgauge

torch.manual_seed(0)
sizes = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
gpt2 = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=64, **sizes)
llama = transformers.LlamaConfig(
    num_hidden_layers=2,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    max_position_embeddings=64,
    **sizes,
)
models = {
    "LayerNorm": transformers.GPT2LMHeadModel(gpt2).double().eval(),
    "RMSNorm": transformers.LlamaForCausalLM(llama).double().eval(),
}
ids = torch.randint(100, (8, 64))


def moved(model, other):
    with torch.no_grad():
        wanted = model(ids).logits
        return ((other(ids).logits - wanted).norm() / wanted.norm()).item()


# %%
gauges = {name: normgauge.random_gauge(model, seed=3) for name, model in models.items()}
for name, model in models.items():
    signs = sorted(set(gauges[name].elements["residual"].factors.tolist()))
    change = moved(model, normgauge.transform(model, gauges[name]))
    print(f"{name:10} signs {signs}   outputs move by {change:.0e}")
    assert change < 1e-5

# %% [markdown]
# Both move by rounding only. The RMSNorm of transformers computes in float32, whatever the model's dtype.
#
# The control: leave the group. Turn the sign of one coordinate of the LayerNorm model, everywhere. `transform` refuses
# it, and says why.

# %%
import dataclasses
import textwrap

element = gauges["LayerNorm"].elements["residual"]
signs = element.factors.copy()
signs[0] *= -1
outside = dataclasses.replace(
    gauges["LayerNorm"], elements={"residual": dataclasses.replace(element, factors=signs)}
)
try:
    normgauge.transform(models["LayerNorm"], outside)
except normgauge.InputError as refused:
    print(textwrap.fill(str(refused), 90))

# %% [markdown]
# A gauge can be found again from activations alone, of the 64 positions of one sequence. Training moves weights as well.
# How far may they be moved before the match fails? Here by noise, relative to the spread of each tensor.

# %%
import copy

from matplotlib import pyplot

model, wanted = models["RMSNorm"], gauges["RMSNorm"].elements["residual"]
other = normgauge.transform(model, gauges["RMSNorm"])
levels, right, certain = [0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0], [], []
for level in levels:
    noisy = copy.deepcopy(other)
    with torch.no_grad():
        for value in noisy.parameters():
            value += level * value.std() * torch.randn_like(value)
    (found,) = [
        each for each in normgauge.match(model, noisy, [ids[:1]]).spaces if each.space == "residual"
    ]
    element = found.element
    right.append(((element.target == wanted.target) & (element.factors == wanted.factors)).mean())
    certain.append(found.certain.mean())
figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
axes.plot(levels, right, marker="o", label="right")
axes.plot(levels, certain, marker="s", linestyle="--", label="said to be certain")
axes.set(xlabel="noise", ylabel="share of coordinates", ylim=(-0.05, 1.05))
axes.legend()

# %%
assert right[0] == certain[0] == 1
print("share right:  ", [round(float(each), 2) for each in right])
print("share certain:", [round(float(each), 2) for each in certain])
assert all(few <= many for few, many in zip(certain, right, strict=True))

# %% [markdown]
# The match gives up certainty long before it goes wrong. `normgauge align` says the same per space, and ends with
# status 1 where not all is certain.
