"""Where a dictionary reads and writes: the hook that its library states, as TransformerLens or
transformers name it, and its space.

TransformerLens counts blocks from 0. `hook_z` holds the values of every query head, one after the
other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from normgauge.anatomy.structure import Anatomy, SpaceKind, Stack
from normgauge.errors import InputError
from normgauge.gauge.groups import AttentionGauge
from normgauge.gauge.model_gauge import Gauge, attention_of
from normgauge.transport.arrays import StreamElement

_BLOCK = re.compile(r"(?P<stack>blocks|encoder|decoder)\.(?P<block>\d+)\.(?P<place>.+)")
_STREAM = (
    *(
        "hook_resid_pre",
        "hook_resid_mid",
        "hook_resid_post",
        "hook_attn_out",
        "hook_mlp_out",
        "hook_attn_in",
        "hook_mlp_in",
    ),
    *(
        "ln1.hook_normalized",
        "ln2.hook_normalized",
        "hook_in",
        "hook_out",
        "mlp.hook_in",
        "mlp.hook_out",
    ),
)
_ENDS = ("hook_embed", "hook_pos_embed", "ln_final.hook_normalized")
_INSIDE = {
    "mlp.hook_post": "ffn",
    "mlp.hook_pre": "ffn",
    "mlp.hook_pre_linear": "ffn",
    "attn.hook_z": "value",
    "attn.hook_v": "value",
    "attn.hook_q": "query",
    "attn.hook_rot_q": "query",
    "attn.hook_k": "key",
    "attn.hook_rot_k": "key",
}


@dataclass(frozen=True)
class Hook:
    """A hook of a model. `space`: in which its activations lie, `width` of them. `heads`: one run
    of values per query head;
    `gate`: before the activation of a gated feed-forward layer, which permutations alone pass.
    """

    name: str
    space: str
    width: int
    heads: bool = False
    gate: bool = False

    def element(self, anatomy: Anatomy, gauge: Gauge) -> StreamElement:
        """What the gauge does to its activations. Raises InputError where it does nothing."""
        element = gauge.on_space(anatomy, self.space)
        if self.heads and element is not None:
            layer = gauge.elements[attention_of(self.space)]
            assert isinstance(layer, AttentionGauge)
            element = layer.mixed
        if element is None:
            raise InputError(
                f"hook {self.name}: the gauge does not move {self.space}, in which it lies; it "
                f"moves {', '.join(gauge.elements)}"
            )
        return element.permutation() if self.gate else element


def hook_of(anatomy: Anatomy, name: str) -> Hook:
    """The hook of a name. Raises InputError for a name that stands for no space of the model."""
    for stack in anatomy.stacks:
        block = any(path == name or path.endswith(f".{name}") for path in stack.blocks)
        if block or (name in _ENDS and len(anatomy.stacks) == 1):
            return Hook(name, stack.space, stack.width)
    found = _BLOCK.fullmatch(name)
    stack_ = _stack(anatomy, found["stack"]) if found else None
    if found and stack_ and int(found["block"]) < len(stack_.blocks):
        if found["place"] in _STREAM:
            return Hook(name, stack_.space, stack_.width)
        space = f"{stack_.name}/block.{int(found['block']) + 1}/{_INSIDE.get(found['place'])}"
        if any(each.name == space for each in anatomy.spaces):
            return _inside(anatomy, name, space, found["place"])
    raise InputError(
        f"hook {name}: stands for no space of {anatomy.architecture}; expected a hook of "
        f"TransformerLens on the stream ({_STREAM[2]}), "
        "the feed-forward units (mlp.hook_post) or the heads (attn.hook_z), or a block's module "
        f"({anatomy.primary_stack.blocks[0]})"
    )


def _stack(anatomy: Anatomy, name: str) -> Stack | None:
    if name == "blocks":
        return anatomy.primary_stack if len(anatomy.stacks) == 1 else None
    return next((stack for stack in anatomy.stacks if stack.name == name), None)


def _inside(anatomy: Anatomy, name: str, space: str, place: str) -> Hook:
    found = anatomy.space(space)
    if place == "attn.hook_z":
        query = anatomy.space(f"{space.removesuffix('value')}query")
        return Hook(name, space, query.heads * (found.size // found.heads), heads=True)
    gated = found.kind == SpaceKind.FFN and sum(item.writes == space for item in anatomy.maps) > 1
    return Hook(name, space, found.size, gate=gated and place == "mlp.hook_pre")
