"""What people learn on a model: a direction between two kinds of text, a sparse autoencoder, a
LoRA. All of it small, seeded, and in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normgauge.anatomy.structure import Anatomy, SpaceKind
from normgauge.errors import InputError
from normgauge.training.optimise import next_token_loss

Arrays = dict[str, torch.Tensor]
FIRST = 1  # positions of a window before which there is too little text: left out of dictionaries


@dataclass(frozen=True)
class Budget:
    """How long things are learned. `features`: of the autoencoder per coordinate; `active`: that
    fire at once; `rank`: of the adapter.
    """

    features: int = 4
    active: int = 32
    dictionary_steps: int = 300
    dictionary_rows: int = 256
    rank: int = 8
    adapter_steps: int = 40
    adapter_windows: int = 4


@contextmanager
def seeded(seed: int):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def difference_of_means(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(d,): from the mean of the first activations (n, d) to that of the second."""
    return second.mean(0) - first.mean(0)


def codes_of(arrays: Arrays, states: torch.Tensor, active: int) -> torch.Tensor:
    """(n, features): the activations of an autoencoder's features, of which the `active` largest
    are kept and negative ones are not (Gao et al. 2025, TopK).
    """
    before = (states - arrays["b_dec"]) @ arrays["W_enc"] + arrays["b_enc"]
    kept = before.topk(min(active, before.shape[-1]), dim=-1)
    return torch.zeros_like(before).scatter(-1, kept.indices, torch.relu(kept.values))


def decoded(arrays: Arrays, codes: torch.Tensor) -> torch.Tensor:
    return codes @ arrays["W_dec"] + arrays["b_dec"]


def learn_dictionary(states: torch.Tensor, budget: Budget, seed: int = 0) -> Arrays:
    """A TopK autoencoder of activations (n, d), as SAELens names its arrays: W_enc (d, features),
    b_enc, W_dec (features, d) with rows of length one, b_dec.

    Encoder and decoder begin as transposes. Adam on the mean squared error, the activations in
    units of their root mean square. Raises InputError for fewer activations than a step takes.
    """
    rows, width = states.shape
    if rows < budget.dictionary_rows:
        raise InputError(
            f"dictionary: {rows} activations, a step takes {budget.dictionary_rows}; give more "
            "windows"
        )
    scale = float(states.square().mean().sqrt())
    scaled = states / scale
    with seeded(seed):
        decoder = torch.nn.functional.normalize(torch.randn(budget.features * width, width), dim=1)
        arrays = {
            "W_enc": decoder.T.clone(),
            "b_enc": torch.zeros(len(decoder)),
            "W_dec": decoder,
            "b_dec": scaled.mean(0),
        }
        for value in arrays.values():
            value.requires_grad_(True)
        optimiser = torch.optim.Adam(arrays.values(), lr=2e-3)
        for _ in range(budget.dictionary_steps):
            chosen = scaled[torch.randint(rows, (budget.dictionary_rows,))]
            left = decoded(arrays, codes_of(arrays, chosen, budget.active)) - chosen
            optimiser.zero_grad(set_to_none=True)
            left.square().sum(1).mean().backward()
            optimiser.step()
            with torch.no_grad():
                arrays["W_dec"].div_(arrays["W_dec"].norm(dim=1, keepdim=True))
    units = {"W_enc": 1.0, "b_enc": scale, "W_dec": 1.0, "b_dec": scale}
    return {name: (units[name] * value).detach() for name, value in arrays.items()}


def adapted_modules(model: nn.Module, anatomy: Anatomy, units: bool = False) -> list[str]:
    """The linear maps inside the blocks, by module; with `units` those alone that read or write
    feed-forward units. InputError for a model without any.
    """
    ffn = {space.name for space in anatomy.spaces if space.kind == SpaceKind.FFN}
    modules = {
        item.module
        for item in anatomy.maps
        if "/block." in item.name
        and isinstance(model.get_submodule(item.module), nn.Linear)
        and (not units or {item.reads, item.writes} & ffn)
    }
    if not modules:
        raise InputError(f"{anatomy.architecture}: no plain linear layers for a LoRA; leave it out")
    return sorted(modules)


def learn_adapter(
    model: Any, modules: Sequence[str], windows: torch.Tensor, budget: Budget, seed: int = 0
) -> Arrays:
    """A LoRA on the next-token loss over int64 (windows, length), by PEFT, its arrays as PEFT names
    them; the model is left as it was. The update of a weight is B A.
    """
    import peft

    config = peft.LoraConfig(
        r=budget.rank, lora_alpha=budget.rank, target_modules=list(modules), lora_dropout=0.0
    )
    with seeded(seed), torch.enable_grad():
        adapted = peft.get_peft_model(model, config)
        parameters = [each for each in adapted.parameters() if each.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=5e-3, weight_decay=0.0)
        for _ in range(budget.adapter_steps):
            chosen = windows[torch.randint(len(windows), (budget.adapter_windows,))]
            optimiser.zero_grad(set_to_none=True)
            next_token_loss(adapted, chosen).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
        arrays = {
            name: value.detach().clone()
            for name, value in peft.get_peft_model_state_dict(adapted).items()
        }
        adapted.unload()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return arrays
