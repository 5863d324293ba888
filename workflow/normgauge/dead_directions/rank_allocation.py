"""How much of the stream's bottom may be removed, and from which blocks? (arXiv 2606.19491, B.1,
figure 7.)

The paper compares three ways of spreading one budget over the blocks: equal, more for early blocks
(k_l ~ L - l, its theorem), more for late ones. It does not say what is projected. Here it is the
stream itself: after block l the k_l principal directions of least variance, from the calibration,
are replaced by their mean,

    x <- x - U_l U_l^T (x - m_l),

and the readout's loss is measured on other sequences than those that gave U_l and m_l.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from normgauge.calibration.batches import Batch
from normgauge.capture.hooks import placed
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.errors import InputError
from normgauge.moments import Moments

FORWARD = "float32"
ALLOCATIONS = ("uniform", "early", "late")


@dataclass(frozen=True)
class Removal:
    """What is taken out behind one block: directions (d, k) of least variance, and mean (d,)."""

    directions: torch.Tensor
    mean: torch.Tensor

    def __call__(self, stream: torch.Tensor) -> torch.Tensor:
        return stream - (stream - self.mean) @ self.directions @ self.directions.T


def ranks(allocation: str, share: float, blocks: int, width: int) -> list[int]:
    """k_l of blocks 1..L, summing to `share` of L x width up to rounding; none takes all of a
    block.

    early: k_l proportional to L - l, so that the last block keeps everything; late: to l - 1, its
    mirror image. What a block cannot take goes to the next in order.
    """
    weights = {
        "uniform": np.ones(blocks),
        "early": np.arange(blocks - 1, -1, -1.0),
        "late": np.arange(blocks, dtype=float),
    }[allocation]
    total = round(share * blocks * width)
    exact = total * weights / weights.sum()
    found = np.minimum(np.floor(exact), width - 1).astype(int)
    order = np.argsort(-(exact - found), kind="stable")
    for block in [*order, *order]:
        if found.sum() < total and weights[block] > 0 and found[block] < width - 1:
            found[block] += min(total - found.sum(), 1)
    return found.tolist()


def allocation_rows(
    subject: Subject,
    calibration: PathLike,
    shares: Sequence[float],
    held_out: int,
    batch_size: int,
) -> Rows:
    """Rows of schema `figure7`: one per allocation and share of the budget, and one with nothing
    removed.

    The first half of the calibration's sequences gives the directions, `held_out` of the second
    the loss. The error is that of the mean difference of the loss from the intact model's, over
    sequences. Raises InputError for a model that does not predict the next token.
    """
    stack = subject.anatomy.primary_stack
    if not stack.causal or subject.checkpoint.config.is_encoder_decoder:
        raise InputError(
            f"{subject.identity.model}: no decoder-only language model, so it has no perplexity; "
            "leave it out of dead_directions.rank_allocation"
        )
    [measurement] = subject.measure(
        calibration, {FORWARD: ("residual",)}, batch_size, 0, shard=(0, 2)
    )
    moments = [
        measurement.moments[f"{stack.name}/block.{number}/output"]
        for number in range(1, len(stack.blocks) + 1)
    ]
    bases = [found.spectrum().bottom(found.d) for found in moments]
    model = subject.build(FORWARD)
    second = subject.batches(calibration, held_out, shard=(1, 2))
    batches = [next(iter(second))]
    intact = losses(model, stack.blocks, {}, batches)
    rows = [_row(subject, "none", 0.0, [0] * len(bases), intact, intact, moments)]
    for allocation in ALLOCATIONS:
        for share in shares:
            counts = ranks(allocation, share, len(bases), stack.width)
            removals = removals_of(bases, moments, counts)
            removed = losses(model, stack.blocks, removals, batches)
            rows.append(_row(subject, allocation, share, counts, removed, intact, moments))
    return rows


def removals_of(
    bases: Sequence[np.ndarray], moments: Sequence[Moments], counts: Sequence[int]
) -> dict[int, Removal]:
    """By block index the removal of its `counts` bottom directions; bases: (d, d), ascending."""
    return {
        index: Removal(
            torch.from_numpy(np.ascontiguousarray(bases[index][:, :count])).float(),
            torch.from_numpy(moments[index].mean).float(),
        )
        for index, count in enumerate(counts)
        if count
    }


def losses(
    model: torch.nn.Module,
    blocks: Sequence[str],
    removals: Mapping[int, Removal],
    batches: Sequence[Batch],
) -> np.ndarray:
    """(sequences,) mean loss of each sequence in nats per token, with the removals behind their
    blocks.
    """
    found = []
    parameter = next(model.parameters())
    with torch.inference_mode(), _removing(model, blocks, removals):
        for batch in batches:
            ids = batch.inputs["input_ids"]
            inputs = {key: placed(value, parameter) for key, value in batch.inputs.items()}
            logits = model(**inputs, use_cache=False).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), ids[:, 1:], reduction="none"
            )
            found.append(loss.mean(1).double())
    return torch.cat(found).numpy()


@contextmanager
def _removing(
    model: torch.nn.Module, blocks: Sequence[str], removals: Mapping[int, Removal]
) -> Iterator[None]:
    def hook(removal: Removal) -> Any:
        def replace(_module: Any, _inputs: Any, output: Any) -> Any:
            if isinstance(output, tuple):
                return (removal(output[0]), *output[1:])
            return removal(output)

        return replace

    handles = [
        model.get_submodule(blocks[index]).register_forward_hook(hook(removal))
        for index, removal in removals.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _row(
    subject: Subject,
    allocation: str,
    share: float,
    counts: Sequence[int],
    loss: np.ndarray,
    intact: np.ndarray,
    moments: Sequence[Moments],
) -> dict[str, Any]:
    rise = loss - intact
    error = (
        float(rise.std(ddof=1) / rise.size**0.5) if rise.size > 1 and allocation != "none" else None
    )
    return {
        **subject.labels,
        "kind": subject.kind,
        "allocation": allocation,
        "share": share,
        "removed": int(sum(counts)),
        "blocks": len(counts),
        "d": moments[0].d,
        "n": moments[0].n,
        "sequences": int(loss.size),
        "forward_dtype": FORWARD,
        "first_block": int(counts[0]),
        "last_block": int(counts[-1]),
        "loss": float(loss.mean()),
        "loss_rise": float(rise.mean()),
        "loss_rise_se": error,
        "perplexity": float(np.exp(loss.mean())),
        "perplexity_ratio": float(np.exp(rise.mean())),
        "perplexity_ratio_se": None if error is None else float(np.exp(rise.mean()) * error),
    }
