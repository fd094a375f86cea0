"""Equal inputs give equal hashes, whatever their order; different ones do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runner import hashing

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(st.dictionaries(st.text(), VALUES))
def test_the_order_of_keys_does_not_matter(value):
    turned = dict(reversed(list(value.items())))
    assert hashing.of_value(value) == hashing.of_value(turned)


@given(st.lists(st.text(), min_size=2))
def test_the_order_of_a_list_does(values):
    turned = values[::-1]
    assert (hashing.of_value(values) == hashing.of_value(turned)) == (values == turned)


@given(st.text(), st.text())
def test_values_do_not_run_into_each_other(a, b):
    assert hashing.of_value(a, b) != hashing.of_value(a + b)
    assert (hashing.of_value(a) == hashing.of_value(b)) == (a == b)


def test_a_tree_is_its_paths_and_contents(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        (root / "a").mkdir(parents=True)
        (root / "a" / "x.py").write_text("x")
        (root / "b.py").write_text("y")
    assert hashing.of_tree(one) == hashing.of_tree(two)
    (two / "__pycache__").mkdir()
    (two / "__pycache__" / "b.pyc").write_text("compiled")
    assert hashing.of_tree(one) == hashing.of_tree(two)
    (two / "b.py").rename(two / "c.py")
    assert hashing.of_tree(one) != hashing.of_tree(two)
    (two / "c.py").rename(two / "b.py")
    (two / "b.py").write_text("z")
    assert hashing.of_tree(one) != hashing.of_tree(two)
