"""The re-initialised twin of a checkpoint, drawn tensor by tensor with the values of the whole.

The class initialises itself on parameters without memory. Of each parameter is kept what is done to
its values, and at each draw the state of the generator. What is drawn only moves the generator on,
one tensor at a time; a tensor that is asked for is drawn again from its state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers.initialization import TORCH_INIT_FUNCTIONS

from normgauge.checkpoints.architectures import new_model
from normgauge.checkpoints.building import fresh_tensors
from normgauge.checkpoints.opening import Checkpoint, say
from normgauge.checkpoints.readers.mapped import TensorsOnDemand, made_anew

AS_ONE = ("trunc_normal_", "orthogonal_", "dirac_", "sparse_", "eye_")
"""Functions of torch.nn.init that are followed as one step: the first four return at once where a
tensor has no memory, and what they draw may hang on values.
"""

aten = torch.ops.aten
OVERWRITES = {aten.uniform_, aten.normal_, aten.zero_, aten.fill_, aten.copy_}
CREATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty}

Change = Callable[[torch.Tensor], object]
Place = tuple[tuple[int, ...], tuple[int, ...], int]
"""Shape, strides and offset of a tensor in its memory."""


class NotByTensorError(Exception):
    """Why an initialisation cannot be followed tensor by tensor."""


@dataclass(frozen=True, eq=False)
class Step:
    """One change of a parameter's values, in place. place: of the part that it changes. state: of
    the generator before a draw. after: digest of its state behind it.
    """

    change: Change
    place: Place
    state: torch.Tensor | None = None
    after: bytes = b""


@dataclass(frozen=True)
class Drawing:
    """How a parameter comes by its values. place: where it lies in its memory of `size` values."""

    size: int
    dtype: torch.dtype
    place: Place
    steps: tuple[Step, ...]

    def values(self) -> torch.Tensor:
        """The parameter in new memory. The global generator is left as it was."""
        memory = torch.empty(self.size, dtype=self.dtype)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for step in self.steps:
                if step.state is not None:
                    torch.set_rng_state(step.state)
                step.change(memory.as_strided(*step.place))
                if step.state is not None and _digest(torch.get_rng_state()) != step.after:
                    raise RuntimeError("a tensor was drawn from another state of the generator")
        return memory.as_strided(*self.place)


class DrawnTensors(TensorsOnDemand):
    """The tensors of a twin by name: placeholders without memory, values by `anew`."""

    def __init__(
        self,
        placeholders: Mapping[str, torch.Tensor],
        drawings: Mapping[str, Drawing],
        stored: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__({**placeholders, **stored})
        self._drawings, self._stored = drawings, stored

    def anew(self, name: str) -> torch.Tensor:
        if name in self._stored:
            return made_anew(self._stored, name)
        return self._drawings[name].values()


def why_drawn_whole(source: Checkpoint) -> str | None:
    """Why the class's initialisation cannot be drawn tensor by tensor; None where it can."""
    try:
        drawn_tensors(source, 0)
    except NotByTensorError as reason:
        return str(reason)
    return None


def twin(source: Checkpoint, seed: int) -> Checkpoint:
    """The checkpoint's class with its own random initialisation: values and bytes are those that
    `reinitialise(source, seed, ...)` casts.

    `tensors` are DrawnTensors. Where the initialisation cannot be followed tensor by tensor they
    are drawn whole and held, and that is said on stderr.
    """
    origin = Path(f"initialisation with seed {seed}")
    try:
        tensors: Mapping[str, torch.Tensor] = drawn_tensors(source, seed)
    except NotByTensorError as reason:
        say(origin, (f"drawn whole, not tensor by tensor: {reason}",))
        tensors = fresh_tensors(source, seed)
    return Checkpoint(source.config, tensors, {}, (origin,))


def drawn_tensors(source: Checkpoint, seed: int) -> DrawnTensors:
    """The twin's tensors, drawn when they are asked for; tied ones stand once.

    What the class stores without learning it is the source's. Raises NotByTensorError where the
    initialisation does to a parameter what cannot be done again to it alone.
    """
    record = _Record()
    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
        torch.manual_seed(seed)
        with record.functions_followed(), record:
            model = new_model(source.config, torch.float32)
    learned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tensors = model.state_dict(keep_vars=True)
    held = {name: value for name, value in tensors.items() if not value.is_meta}
    stored = {name: value for name, value in source.tensors.items() if name not in learned}
    drawings = {
        name: record.drawing(name, value) for name, value in tensors.items() if value.is_meta
    }
    for tied, other in getattr(model, "all_tied_weights_keys", {}).items():
        if drawings.pop(tied).steps != drawings[other].steps:
            raise NotByTensorError(f"{tied} and {other} are tied, but not drawn alike")
    placeholders = {name: tensors[name] for name in drawings}
    return DrawnTensors(placeholders, drawings, held | stored)


class _Record(TorchDispatchMode):
    """Follows what happens to tensors without memory, and carries out what is random in it."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[int, tuple[Any, list[Step]]] = {}
        self._untouched: dict[int, Any] = {}  # memory that was asked for and not written to
        self._drawn = torch.empty(0)

    def drawing(self, name: str, parameter: torch.Tensor) -> Drawing:
        """How the parameter came by its values."""
        steps = self._of(parameter)
        if not steps and parameter.numel():
            raise NotByTensorError(f"{name} is never given values")
        return Drawing(_size(parameter), parameter.dtype, _place(parameter), tuple(steps))

    @contextmanager
    def functions_followed(self) -> Iterator[None]:
        """Within this context the functions `AS_ONE` are followed too."""
        own: dict[str, Any] = {name: TORCH_INIT_FUNCTIONS[name] for name in AS_ONE}

        def followed(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
            def change(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
                if not tensor.is_meta:
                    return function(tensor, *args, **kwargs)
                _refuse_generator(kwargs)
                self._change(tensor, lambda memory: function(memory, *args, **kwargs), True, True)
                return tensor

            return change

        def put(functions: Mapping[str, Callable[..., Any]]) -> None:
            TORCH_INIT_FUNCTIONS.update(functions)
            for name, function in functions.items():
                setattr(torch.nn.init, name, function)

        put({name: followed(function) for name, function in own.items()})
        try:
            yield
        finally:
            put(own)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = _tensors_in((args, kwargs))
        if not any(tensor.is_meta for tensor in tensors):
            result = function(*args, **kwargs)
            self._saw(function, tensors, result)
            return result
        kind = function.overloadpacket
        if function.is_view:
            return function(*args, **kwargs)
        # tied readouts pad their bias, as a rule by nothing
        copies = kind is aten.clone or (kind is aten.constant_pad_nd and not any(args[1]))
        if copies or kind in CREATIONS:
            result = function(*args, **kwargs)
            self._begin(result, self._of(args[0]) if copies else [])
            return result
        target, *rest = args
        if not (kind.__name__.endswith("_") and target.is_meta):
            raise NotByTensorError(f"{function} reads values of a parameter")
        _refuse_generator(kwargs)
        if kind is aten.copy_ and rest[0].is_meta:
            self._copy(target, rest[0])
        elif any(tensor.is_meta for tensor in _tensors_in(rest)):
            raise NotByTensorError(f"{function} reads values of a parameter")
        else:
            given = tree_map_only(torch.Tensor, torch.clone, rest)
            draws = torch.Tag.nondeterministic_seeded in function.tags
            self._change(
                target, lambda memory: function(memory, *given, **kwargs), draws, kind in OVERWRITES
            )
        return target

    def _saw(self, function: Any, tensors: Sequence[torch.Tensor], result: Any) -> None:
        """An operation on tensors in memory."""
        kind = function.overloadpacket
        if kind is aten._to_copy and result.is_meta:
            source = tensors[0]
            whole = _place(result)
            steps = [] if _memory_of(source) in self._untouched else [_constant(source, whole)]
            self._untouched.pop(_memory_of(source), None)
            self._begin(result, steps)
        elif kind in CREATIONS and result.is_meta:
            self._begin(result, [])
        elif kind in CREATIONS:
            self._untouched[_memory_of(result)] = result.untyped_storage()
        elif function._schema.is_mutable:
            for tensor in tensors:
                self._untouched.pop(_memory_of(tensor), None)

    def _begin(self, tensor: torch.Tensor, steps: Sequence[Step]) -> None:
        # the memory is held, so that no other tensor comes to lie there
        self._steps[_memory_of(tensor)] = tensor.untyped_storage(), list(steps)

    def _of(self, tensor: torch.Tensor) -> list[Step]:
        try:
            return self._steps[_memory_of(tensor)][1]
        except KeyError:
            raise NotByTensorError("a parameter has values from elsewhere") from None

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if not (_is_whole(target) and _is_whole(source) and _place(target) == _place(source)):
            raise NotByTensorError("a part of a parameter is copied from another one")
        self._of(target)[:] = self._of(source)

    def _change(self, target: torch.Tensor, change: Change, draws: bool, overwrites: bool) -> None:
        place = _place(target)
        step = Step(change, place)
        if draws:
            state = torch.get_rng_state()
            change(self._scratch(target).as_strided(*place[:2]))
            step = Step(change, place, state, _digest(torch.get_rng_state()))
        steps = self._of(target)
        if overwrites and _is_whole(target):
            steps.clear()
        steps.append(step)

    def _scratch(self, target: torch.Tensor) -> torch.Tensor:
        """Memory for a draw that is not kept: the same for all, since the generator's states, which
        are kept, would come to lie in what each leaves, and the next would not fit there.
        """
        size = _size(target)
        if self._drawn.numel() < size or self._drawn.dtype != target.dtype:
            self._drawn = torch.empty(size, dtype=target.dtype)
        return self._drawn


def _tensors_in(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _constant(value: torch.Tensor, place: Place) -> Step:
    kept = value.detach().clone()
    return Step(lambda memory: memory.copy_(kept), place)


def _refuse_generator(kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("generator") is not None:
        raise NotByTensorError("it draws from a generator of its own")


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _size(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.dtype.itemsize


def _place(tensor: torch.Tensor) -> Place:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() == _size(tensor)


def _digest(state: torch.Tensor) -> bytes:
    return hashlib.blake2b(state.numpy().tobytes(), digest_size=8).digest()
