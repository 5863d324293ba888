"""Laws of the group elements: composition, inverse, dual, action, storage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normgauge.errors import InputError
from normgauge.gauge.groups import AttentionGauge, HeadMap, Monomial, Orthogonal, compose_all
from normgauge.gauge.model_gauge import Gauge, read_gauge, write_gauge
from normgauge.schemas.signed_permutation import tables

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 2**20)
laws = settings(max_examples=40, deadline=None)


@st.composite
def monomials(draw, size, factors=(-1.0, 1.0)):
    target = draw(st.permutations(range(size)))
    return Monomial(target, draw(st.lists(st.sampled_from(factors), min_size=size, max_size=size)))


@st.composite
def attention_gauges(draw):
    groups, repeats, size = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
    )

    def one():
        generator = np.random.default_rng(draw(SEEDS))
        maps = [
            np.stack(
                [
                    Orthogonal.random(size, int(generator.integers(2**20))).matrix * 2
                    for _ in range(groups)
                ]
            )
            for _ in range(2)
        ]
        within = np.stack([generator.permutation(repeats) for _ in range(groups)])
        return AttentionGauge(generator.permutation(groups), within, *maps)

    return one(), one(), one()


@st.composite
def triples(draw):
    size = draw(SIZES)
    kind = draw(st.sampled_from(["signed", "scaled", "orthogonal"]))
    if kind == "orthogonal":
        return tuple(Orthogonal.random(size, draw(SEEDS)) for _ in range(3))
    factors = (-1.0, 1.0) if kind == "signed" else (-2.0, -1.0, 0.5, 1.0, 4.0)
    return tuple(draw(monomials(size, factors)) for _ in range(3))


def vectors(size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((4, size)))


def close(first: torch.Tensor, second: torch.Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-11, atol=1e-11)


@laws
@given(triples())
def test_group_laws_of_elements_on_one_space(elements):
    first, second, third = elements
    value = vectors(first.size)
    close(
        first.compose(second).compose(third).apply(value),
        first.compose(second.compose(third)).apply(value),
    )
    close(first.compose(second).apply(value), second.apply(first.apply(value)))
    close(first.compose(first.inverse()).apply(value), value)
    close(first.inverse().compose(first).apply(value), value)
    close(type(first).identity(first.size).compose(first).apply(value), first.apply(value))
    # the dual keeps every pairing of what is written with what reads it
    close(first.apply(value) @ first.dual().apply(value).T, value @ value.T)
    close(
        first.apply(value),
        value @ torch.tensor(first.matrix() if isinstance(first, Monomial) else first.matrix),
    )


@laws
@given(attention_gauges())
def test_group_laws_of_attention_layers(elements):
    first, second, third = elements
    for part in ("query", "key", "value", "mixed"):
        actions = [getattr(element, part) for element in elements]
        value = vectors(actions[0].size)
        close(
            getattr(first.compose(second), part).apply(value),
            actions[1].apply(actions[0].apply(value)),
        )
        close(
            getattr(first.compose(second).compose(third), part).apply(value),
            getattr(first.compose(second.compose(third)), part).apply(value),
        )
        close(getattr(first.inverse(), part).apply(actions[0].apply(value)), value)
        close(
            actions[0].compose(actions[1]).apply(value), actions[1].apply(actions[0].apply(value))
        )
        close(actions[0].inverse().apply(actions[0].apply(value)), value)
    identity = AttentionGauge.identity(
        first.groups, first.repeats, first.query_maps.shape[-1], first.value_maps.shape[-1]
    )
    assert identity.compose(first) == first
    assert first.compose(identity) == first


@laws
@given(
    SIZES.flatmap(monomials),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 2),
)
def test_a_signed_permutation_moves_bits_alone_on_every_axis_and_dtype(element, dtype, axis):
    shape = [2, 3, 2]
    shape[axis] = element.size
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    value.view(-1)[0] = -0.0
    before = value.clone()
    back = element.inverse().apply(element.apply(value, axis), axis)
    assert torch.equal(back.view(torch.uint8), before.view(torch.uint8))
    assert torch.equal(value, before)
    squares = element.apply(value, axis).square()
    assert torch.equal(squares, element.squared().apply(value.square(), axis))
    assert element.squared() == element.permutation()
    assert element.dual() == element


def test_signs_are_source_indexed():
    element = Monomial([2, 0, 1], [-1, 1, 1])
    assert element.apply(torch.tensor([1.0, 2.0, 3.0])).tolist() == [2.0, 3.0, -1.0]
    permutation, signs = np.eye(3)[[2, 0, 1]], np.diag([-1.0, 1.0, 1.0])
    assert np.array_equal(element.matrix(), signs @ permutation)  # G = S P
    assert np.array_equal(element.inverse().matrix(), permutation.T @ signs)  # G^-1 = P^T S


def test_recorded_gauges_are_drawn_from_their_seeds():
    element = Monomial.random(50, 42)
    assert np.array_equal(element.target, np.random.default_rng(42).permutation(50))
    assert np.array_equal(element.factors, np.random.default_rng(1042).choice((-1.0, 1.0), 50))
    assert (Monomial.random(50, 42, signed=False).factors == 1).all()


@laws
@given(SIZES, SEEDS)
def test_rotations_that_fix_the_ones_do(size, seed):
    rotation = Orthogonal.random(size, seed, fixing_ones=True)
    np.testing.assert_allclose(np.ones(size) @ rotation.matrix, np.ones(size), atol=1e-12)
    assert rotation.fixes_ones
    assert Orthogonal(-rotation.matrix).fixes_ones
    assert size < 3 or not Orthogonal.random(size, seed).fixes_ones
    # a tilt of 1e-6 changes the mean of the image by 1e-12 alone, and LayerNorm's output by 1e-6
    if size > 1:
        tilt = np.eye(size)
        tilt[:2, :2] = [[np.cos(1e-6), np.sin(1e-6)], [-np.sin(1e-6), np.cos(1e-6)]]
        assert not Orthogonal(tilt @ rotation.matrix).fixes_ones


def test_head_maps_of_signed_permutations_are_exact():
    element = HeadMap([1, 0], [[[0, 1], [-1, 0]], [[1, 0], [0, -1]]])
    value = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    assert torch.equal(element.inverse().apply(element.apply(value)), value)
    dense = element.apply(value.double() * (1 + 1e-15))
    close(element.apply(value).double(), dense)
    assert element.apply(value)[0].tolist() == [
        value[0, 2].item(),
        -value[0, 3].item(),
        -value[0, 1].item(),
        value[0, 0].item(),
    ]


@laws
@given(
    st.lists(SIZES.flatmap(lambda size: monomials(size, (-1.0, 1.0, 0.3))), min_size=1, max_size=3),
    attention_gauges(),
    SEEDS,
)
def test_gauges_are_stored_as_they_are(tmp_path_factory, elements, layers, seed):
    path = tmp_path_factory.mktemp("gauge") / "gauge.parquet"
    named = {f"space {number}": element for number, element in enumerate(elements)}
    gauge = Gauge({**named, "b/attention": layers[0], "dense": Orthogonal.random(4, seed)})
    write_gauge(path, gauge, {"seed": str(seed)})
    assert read_gauge(path) == gauge
    assert list(read_gauge(path).elements) == list(gauge.elements)


MONOMIAL = {
    "space": "a",
    "kind": "monomial",
    "shape": [2],
    "targets": [1, 0],
    "factors": [1.0, -1.0],
    "matrices": [],
}
LAYER = {
    "space": "b/attention",
    "kind": "attention",
    "shape": [1, 1, 1, 1],
    "targets": [0, 0],
    "factors": [],
    "matrices": [1.0, 2.0],
}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([MONOMIAL | {"targets": [1, 1]}], "gauge of a: .* not a permutation"),
        ([MONOMIAL | {"factors": [1.0, 0.0]}], "gauge of a: .* other than zero"),
        ([MONOMIAL | {"factors": [1.0]}], "gauge of a: .* expected 2"),
        (
            [MONOMIAL | {"shape": [3]}],
            r"gauge of a: holds other numbers than a monomial element of shape \[3\]",
        ),
        ([MONOMIAL | {"shape": []}], "gauge of a: holds other numbers"),
        ([MONOMIAL | {"matrices": [1.0]}], "gauge of a: holds other numbers"),
        ([MONOMIAL, MONOMIAL], "moves a twice"),
        ([MONOMIAL | {"kind": "orthogonal"}], "gauge of a"),
        ([MONOMIAL | {"kind": "shear"}], "kind 'shear' is unknown"),
        ([LAYER | {"matrices": [1.0]}], "gauge of b/attention"),
        ([LAYER | {"matrices": [1.0, 0.0]}], "gauge of b/attention: .* invertible"),
        ([LAYER | {"shape": [1]}], "gauge of b/attention"),
        ([LAYER | {"targets": [0]}], "gauge of b/attention"),
    ],
)
def test_gauge_files_that_hold_no_element_are_refused(rows, message, tmp_path):
    tables.write(tmp_path / "g.parquet", "gauge", rows, {})
    with pytest.raises(InputError, match=message):
        read_gauge(tmp_path / "g.parquet")


def test_gauge_files_that_are_none_are_refused(tmp_path):
    whole = tmp_path / "g.parquet"
    tables.write(whole, "gauge", [MONOMIAL, LAYER], {})
    assert set(read_gauge(whole).elements) == {"a", "b/attention"}
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-200])
    for name in ("cut.parquet", "absent.parquet"):
        with pytest.raises(InputError, match=r"cannot be read as parquet|no such file"):
            read_gauge(tmp_path / name)
    tables.write(whole, "gauge_holonomy", [], {})
    with pytest.raises(InputError, match="expected a gauge table"):
        read_gauge(whole)


def test_a_product_of_gauges_is_taken_space_by_space():
    first, second = Monomial.random(6, 1), Monomial.random(6, 2)
    product = Gauge({"a": first, "b": second}).compose(Gauge({"a": second}))
    assert product == Gauge({"a": first.compose(second), "b": second})
    assert Gauge({"a": first}).inverse() == Gauge({"a": first.inverse()})
    assert (Gauge({"a": first}).without_signs().elements["a"].factors == 1).all()
    assert compose_all([first, second, first]) == first.compose(second).compose(first)
    with pytest.raises(InputError, match="do not compose"):
        Gauge({"a": first}).compose(Gauge({"a": Orthogonal.identity(6)}))
    with pytest.raises(InputError, match="do not follow"):
        Gauge({"a": Orthogonal.identity(6)}).squared()
    with pytest.raises(TypeError):
        Gauge({"a": first}).elements["a"] = second


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Monomial([0, 0], [1, 1]), "not a permutation"),
        (lambda: Monomial([0, 1], [1, 0]), "other than zero"),
        (lambda: Monomial([0, 1], [1, np.nan]), "other than zero"),
        (lambda: Monomial([0, 1], [1]), "expected 2"),
        (lambda: Orthogonal([[1, 0.1], [0, 1]]), "not orthogonal"),
        (lambda: Orthogonal([[1, 0]]), "not orthogonal"),
        (lambda: HeadMap([0, 1], np.ones((3, 2, 2))), "expected"),
        (lambda: AttentionGauge([0], [[0]], np.zeros((1, 2, 2)), np.ones((1, 1, 1))), "invertible"),
        (
            lambda: AttentionGauge([0, 1], [[0]], np.ones((2, 1, 1)), np.ones((2, 1, 1))),
            "head order",
        ),
        (lambda: Monomial([0, 1], [1, 1]).apply(torch.ones(3)), "2 coordinates"),
        (lambda: compose_all([]), "empty"),
    ],
)
def test_what_is_no_element_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
