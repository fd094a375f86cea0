"""What differs between cells, which pairs flip, and why a cell is new: on a database made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rows import changed, ok, prompt, store

import db
from db import differences, pairs, sql, why
from db import engine as database
from db.query import NotInDatabase

GOOD, BAD = prompt("p", 1, 1), prompt("p", 1, 900)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.db")


@pytest.fixture
def engine(path):
    return database.open_database(path)


def told(engine, one: int, two: int) -> list[str]:
    made = differences.makings(engine, [one, two])
    return [d.told() for d in differences.differences(made[one], made[two])]


def test_equal_cells_differ_in_nothing(engine):
    one, two = (store(engine, {}, changed("a")) for _ in range(2))
    assert told(engine, one, two) == []


def test_a_package_is_named_with_its_role_and_versions(engine):
    one = store(engine, {}, changed(), transformers="5.13.0", numpy="2")
    two = store(engine, {}, changed(), transformers="5.24.0", numpy="2")
    assert told(engine, one, two) == ["builder's transformers (5.13.0 / 5.24.0)"]


def test_sources_that_differ_under_one_name_are_a_difference(engine):
    one, two = store(engine, {}, changed()), store(engine, {}, changed(source_tree="t"))
    assert told(engine, one, two) == ["builder sources (s / t)"]
    three = store(engine, {"builder": "w"}, changed(source_tree="t"))
    assert told(engine, one, three) == ["builder (v / w)"]  # one difference to a reader


def test_what_one_side_does_not_know_is_no_difference(engine):
    one = store(engine, {}, changed())
    failed = replace(ok(hash="f", status="export_failed", error="e"), environments={})
    two = store(engine, {}, changed(), failed)
    assert told(engine, one, two) == []


def test_a_change_of_one_name_that_does_another_thing_is_a_difference(engine):
    one, two = store(engine, {}, changed("a")), store(engine, {}, changed("a", hash="other"))
    made = differences.makings(engine, [one, two])
    assert [d.what for d in differences.change_differences(made[one], made[two])] == ["change a"]
    assert made[one].effective() != made[two].effective()


def test_what_was_there_already_is_not_effective(engine):
    ident = store(engine, {}, changed("a", status="present"))
    assert differences.makings(engine, [ident])[ident].effective() == frozenset()


def test_pairs_that_flip_differ_in_one_factor_alone(engine):
    right = store(engine, {"patch": "fix"}, changed("a"))
    wrong = store(engine, {"patch": "none"}, changed(), ok(BAD, hash="b"))
    store(engine, {"patch": "none", "dtype": "w"}, changed(), ok(BAD, hash="c"))  # differs in two from the right one
    store(engine, {"patch": "none"}, changed(), ok(hash="d", status="skipped", final=False))
    (row,) = pairs.pair_rows(engine, {})
    assert (row["axis"], row["better"]["cell"], row["worse"]["cell"], row["also"]) == ("patch", right, wrong, [])
    assert pairs.pair_rows(engine, {"patch": ["other"]}) == []
    assert pairs.pair_rows(engine, {}, axes=["builder"]) == []


def test_two_of_one_value_are_no_pair_nor_are_two_options_one_difference(engine):
    store(engine, {"backend": "b"}, changed())
    store(engine, {"backend": "b"}, changed(), ok(hash="f", status="load_failed", error="e"))  # again, more strictly
    store(engine, {"backend": "b"}, changed(), ok(hash="g", status="reference_failed", error="e"))  # says nothing of it
    assert pairs.pair_rows(engine, {}) == []
    differ = pairs.apart("options")
    assert differ("a=1 b=2", "a=1 b=3") and differ("", "a=1") and not differ("a=1 b=2", "") and not differ("a=1", "a=1")


def test_a_pair_says_what_else_differs_by_hash(engine):
    store(engine, {"builder": "1"}, changed(), transformers="4")
    store(engine, {"builder": "2"}, changed(source_tree="t"), ok(BAD, hash="b"), transformers="5")
    (row,) = pairs.pair_rows(engine, {})
    assert row["also"] == ["builder sources (s / t)", "builder's transformers (4 / 5)"]


def test_why_names_the_nearest_cell_and_what_differs(engine):
    store(engine, {"patch": "x", "dtype": "y", "model": "z"}, changed("b"))
    near = store(engine, {"patch": "none"}, changed())
    mine = store(engine, {"patch": "fix"}, changed("a"))
    found = why.why(engine, mine)
    assert found["neighbour"] == near and found["differences"] == ["change a (not asked / applied)"]
    with pytest.raises(NotInDatabase):
        why.why(engine, 99)


def test_a_diff_has_what_differs_and_nothing_else(engine):
    one = store(engine, {"patch": "none"}, changed())
    two = store(engine, {"patch": "fix"}, changed("a"), ok(BAD, hash="b"))
    rows = {row["what"]: (row["one"], row["two"]) for row in why.diff_rows(engine, one, two)}
    assert rows["patch"] == ("none", "fix") and rows["verdict"] == ("within_noise", "broken")
    assert rows["change a"] == ("not asked", "applied") and "model" not in rows and "sweep" not in rows
    assert why.diff_rows(engine, one, one) == []


def test_another_precision_has_another_floor_and_that_is_one_difference(engine):
    cells = []
    for precision, noise, within in (("fp32", "a", 10), ("int4", "b", 3)):
        about = {"noise_key": noise, "thresholds": {"within": within, "broken": 1000}}
        cells.append(store(engine, {"precision": precision}, changed(), ok(GOOD, hash=noise, **about)))
    assert [row["what"] for row in why.diff_rows(engine, *cells)] == ["precision"]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM cell", "UPDATE cell SET model = 'x'", "DROP TABLE cell", "CREATE TABLE t (a)",
        "PRAGMA query_only = OFF", "ATTACH '/tmp/y.db' AS y", "WITH x AS (SELECT 1) DELETE FROM cell", "nonsense",
        "VACUUM INTO '/tmp/z.db'",
    ],
)  # fmt: skip
def test_sql_can_only_read(engine, statement):
    store(engine, {}, changed())
    with pytest.raises(sql.SqlProblem):
        sql.read(engine, statement)
    assert sql.read(engine, "SELECT model, ':x' AS c FROM cell") == (["model", "c"], [{"model": "v", "c": ":x"}])
    store(engine, {}, changed())  # and what comes after it can write


def test_frames(path, engine):
    ident = store(engine, {"model": "m"}, changed(), ok(GOOD, BAD, hash="f"))
    store(engine, {"model": "n"}, changed())
    assert list(db.frame(db=path)["model"]) == ["m", "m", "n"]
    assert list(db.frame("cells", db=path, model=["n"])["verdict"]) == ["within_noise"]
    assert len(db.frame("steps", db=path, cell=ident)) == 4 and len(db.frame("sweeps", db=path)) == 2
    assert list(db.frame(db=path, sweep="latest")["model"]) == ["n"]
    for bad in ({"what": "rows"}, {"colour": "red"}, {"what": "metrics"}):
        with pytest.raises(ValueError):
            db.frame(db=path, **bad)
    with pytest.raises(NotInDatabase):
        db.frame(db=path, model="o")
