"""Matrices beside matrices: floats in their dtype, whole numbers within their steps, and causes that explain all."""

from __future__ import annotations

import numpy as np
import pytest
import weights_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from weights_rows import Floats, Part, Quantised, compared
from weights_why import explained, in_brain

RANDOM = np.random.default_rng(0)


class Matrix:
    """A matrix of a checkpoint, as `weights_reference.Wanted` is asked for it."""

    def __init__(self, array: np.ndarray, what: str = "q_proj", layer: int = 0):
        self.array, self.what, self.layer, self.tensor = array, what, layer, object()

    @property
    def shape(self) -> tuple[int, int]:
        return self.array.shape

    def values(self, first: int, end: int) -> np.ndarray:
        return self.array[first:end]

    def columns(self, first: int, end: int) -> np.ndarray:
        return self.array.T[first:end]

    def rows(self, first: int, end: int) -> Matrix:
        return Matrix(self.array[first:end], self.what, self.layer)

    def named(self, beside: int) -> str:
        return self.what if self.layer == beside else f"layer {self.layer}'s {self.what}"


def matrix(rows: int = 12, columns: int = 8) -> np.ndarray:
    return RANDOM.normal(size=(rows, columns)).astype(np.float32)


def whole(held: np.ndarray) -> Part:
    return Part(Floats(held), 0, len(held))


def packed(whole_numbers: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [rows, bytes] of whole numbers [rows, values], low bits first."""
    each = 8 // bits
    parts = whole_numbers.reshape(len(whole_numbers), -1, each).astype(np.uint8)
    return sum(parts[..., n] << (bits * n) for n in range(each)).astype(np.uint8)


def quantise(values: np.ndarray, bits: int, block: int, symmetric: bool = True, steps=np.float32) -> Quantised:
    """To the nearest step: of a symmetric block its farthest value is the lowest step."""
    rows, columns = values.shape
    blocks = np.pad(values, ((0, 0), (0, -columns % block))).reshape(rows, -1, block)
    last = 2**bits - 1
    if symmetric:
        far = np.take_along_axis(blocks, np.abs(blocks).argmax(2)[..., None], 2)[..., 0]
        step, zero = (far / -(2 ** (bits - 1))).astype(steps), np.full(far.shape, 2.0 ** (bits - 1), np.float32)
    else:
        low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
        step = ((high - low) / last).astype(steps)
        zero = np.clip(np.round(-low / np.where(step == 0, 1, step)), 0, last).astype(np.float32)
    safe = np.where(step == 0, 1, step).astype(np.float32)[..., None]
    numbers = np.clip(np.round(blocks / safe + zero[..., None]), 0, last).reshape(rows, -1)
    held = packed(numbers, bits)
    return Quantised(held, step, zero if not symmetric else 2.0 ** (bits - 1), bits, block, columns)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([2, 4, 8]), block=st.sampled_from([16, 32]), columns=st.sampled_from([16, 48, 50]),
    symmetric=st.booleans(), steps=st.sampled_from([np.float32, np.float16]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_nearest_steps_of_any_form_are_right(bits, block, columns, symmetric, steps, seed):
    values = np.random.default_rng(seed).normal(size=(6, columns)).astype(np.float32)
    values[0] = 0
    held = quantise(values, bits, block, symmetric, steps)
    found = compared(Part(held, 0, 6), values, 0, 6)
    assert not found.off.any() and found.exact and found.largest > 0
    assert held.shape == values.shape and np.abs(held.values(0, 6) - values).max() == pytest.approx(found.largest)


@pytest.mark.parametrize("bits", [4, 8])
def test_what_no_rounding_explains_is_off(bits):
    values = matrix(6, 64)
    right = quantise(values, bits, 32)
    numbers = weights_rows.unpacked(right.packed, bits).copy()
    numbers[2, 5] = (int(numbers[2, 5]) + 3) % 2**bits
    other = Quantised(packed(numbers, bits), right.steps, right.zeros, bits, 32, 64)
    found = compared(Part(other, 0, 6), values, 0, 6)
    assert np.argwhere(found.off).tolist() == [[2, 5]]
    wide = Quantised(
        np.full_like(right.packed, 0x88 if bits == 4 else 0x80), right.steps * 1000, right.zeros, bits, 32, 64
    )
    assert compared(Part(wide, 0, 6), values, 0, 6).off.any(axis=1).all()  # a step as large as the values excuses none
    lost = Quantised(right.packed, right.steps * 0, right.zeros, bits, 32, 64)
    assert compared(Part(lost, 0, 6), values, 0, 6).off.all()


def test_steps_that_are_not_the_nearest_are_no_other_values():
    values = matrix(4, 32)
    right = quantise(values, 4, 32)
    numbers = weights_rows.unpacked(right.packed, 4).astype(int)
    place = values / np.repeat(right.steps, 32, axis=1) + 8
    other = np.clip(np.where(place > numbers, numbers + 1, numbers - 1), 0, 15)
    found = compared(Part(Quantised(packed(other, 4), right.steps, 8.0, 4, 32, 32), 0, 4), values, 0, 4)
    assert not found.off.any() and not found.exact


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_floats_are_compared_in_their_own_dtype(dtype):
    values = matrix()
    values[3, 3] = 1e6  # beyond a half
    with np.errstate(over="ignore"):
        held = values.astype(dtype)
    assert compared(whole(held), values, 0, 12).exact
    held[5, 2] = np.nan
    found = compared(whole(held), values, 0, 12)
    assert np.argwhere(found.off).tolist() == [[5, 2]] and found.largest == np.inf


def test_rows_that_take_turns_are_parts_of_their_own():
    gate, up = matrix(4), matrix(4)
    both = np.stack([gate, up], axis=1).reshape(8, 8)
    for held in (Floats(both), quantise(both, 8, 8)):
        assert not compared(Part(held, 0, 8, 2), gate, 0, 4).off.any()
        assert not compared(Part(held, 1, 8, 2), up[1:3], 1, 3).off.any()
        assert compared(Part(held, 1, 8, 2), gate, 0, 4).off.any()


def scaled(values: np.ndarray, row: int, factor: float) -> np.ndarray:
    held = values.copy()
    held[row] *= factor
    return held


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.T, "is transposed"),
        (lambda a: a[::-1], "has its rows in reverse"),
        (lambda a: a[:, ::-1], "has its columns in reverse"),
        (lambda a: np.roll(a, 2, axis=0), "has its rows in another order"),
        (lambda a: a.astype(np.float16).astype(np.float32), "rounded to float16"),
        (in_brain, "rounded to bfloat16"),
        (lambda a: a * np.float32(-3), "is -3 times the checkpoint's"),
        (lambda a: scaled(a, 2, 0.0), "is zero in row 2 of 12: largest "),
        (lambda a: scaled(a, 2, 2.0), "differs in row 2 of 12: largest "),
        (lambda a: a * 0, "is zero in the export"),
        (lambda a: a + np.float32(1), "differs, largest 1 at ["),
    ],
)
def test_a_cause_is_told_where_it_explains_every_value(change, said):
    item = Matrix(matrix(12, 12))
    assert explained(item, whole(np.ascontiguousarray(change(item.array))), [item]).startswith(said)


def test_a_cause_that_leaves_one_value_is_none():
    item = Matrix(matrix(12, 12))
    for change in (lambda a: a[::-1], lambda a: a.T, lambda a: a * np.float32(2)):
        held = np.ascontiguousarray(change(item.array)).copy()
        held[3, 4] += 1
        assert explained(item, whole(held), [item]).startswith("differs")


def test_another_matrix_in_its_place_is_named():
    item, other, packed_ = Matrix(matrix()), Matrix(matrix(), "q_proj", 2), Matrix(matrix(24), "qkv_proj", 1)
    assert explained(item, whole(other.array), [item, other]) == "holds layer 2's q_proj"
    assert (
        explained(item, whole(packed_.array[12:]), [item, other, packed_]) == "holds rows 12-23 of layer 1's qkv_proj"
    )
    steps = quantise(other.array, 4, 8)
    assert explained(item, Part(steps, 0, 12), [item, other]) == "holds layer 2's q_proj"


def test_large_matrices_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr(weights_rows, "AT_ONCE", 20)
    assert list(weights_rows.chunks((5, 8))) == [(0, 2), (2, 4), (4, 5)]
    item = Matrix(matrix(5))
    assert explained(item, whole(scaled(item.array, 4, 0.0)), [item]).startswith("is zero in row 4 of 5")
