"""A verdict is told with what it does not say itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rows import changed, ok, prompt, store

from db import engine as database
from db import history, items, query
from reports import depth as depth_report
from reports import history as history_report
from reports import regressions, status, sweep
from reports.verdict_words import reserved, verdict_words


@pytest.mark.parametrize(
    ("verdict", "wrong", "said"),
    [
        ("within_noise", 0, "within noise"),
        ("within_noise", None, "within noise"),
        ("within_noise", 1, "within noise on these prompts, and a constant is wrong"),
        ("near_tie", 3, "near tie on these prompts, and 3 constants are wrong"),
        ("elevated", 1, "elevated"),  # the constant may be why
        ("broken", 2, "broken"),
    ],
)
def test_what_no_prompt_shows_is_told(verdict, wrong, said):
    row = {"verdict": verdict, "noise_floor_largest": 1.0, "constants_wrong": wrong}
    assert verdict_words(row) == said


def test_without_a_floor_that_is_said():
    assert verdict_words({"verdict": None, "noise_floor_largest": None, "constants_wrong": 1}) == "no noise floor"


def constant(verdict: str) -> dict:
    return {
        "constants_key": f"k{verdict}", "position": 0, "kind": "window", "what": "attention", "layers": [0],
        "reference": "16", "export": None, "max_abs_diff": None, "positions": None, "verdict": verdict, "says": "",
    }  # fmt: skip


def test_a_result_knows_how_many_of_its_constants_are_wrong(tmp_path):
    engine = database.open_database(str(tmp_path / "x.db"))
    for n, found in enumerate(([], [constant("same")], [constant("dropped"), constant("unread") | {"position": 1}])):
        store(engine, {"model": str(n)}, changed(), replace(ok(prompt("p", 1, 1), hash=str(n)), constants=found))
    rows = query.cell_rows(engine)
    assert [row["constants_wrong"] for row in rows] == [None, 0, 1]
    assert [verdict_words(row) for row in rows] == [
        "within noise", "within noise", "within noise on these prompts, and a constant is wrong",
    ]  # fmt: skip
    assert [row["constants_wrong"] for row in query.result_rows(engine)] == [None, 0, 1]


@pytest.mark.parametrize("verdict", ["within_noise", "broken", None])
def test_reservations_stand_beside_every_verdict(verdict):
    row = {"verdict": verdict, "noise_floor_largest": 1.0, "reservations": ["it does not stop", "its text differs"]}
    assert verdict_words(row).endswith("; it does not stop; its text differs")
    assert verdict_words(row | {"reservations": None}) + reserved(row) == verdict_words(row)


def test_where_no_verdict_is_shown_what_it_hides_is():
    row = {"verdict": "within_noise", "constants_wrong": 1, "reservations": ["it does not stop"]}
    assert reserved(row) == "; a constant is wrong; it does not stop"
    assert reserved({"verdict": "within_noise"}) == ""


def test_the_reservations_of_a_result_are_in_every_row(tmp_path):
    engine = database.open_database(str(tmp_path / "x.db"))
    store(engine, {"model": "m"}, changed(), ok(prompt("p", 1, 1), reservations=["it does not stop"]))
    for read in (query.cell_rows, query.result_rows, history.history_rows):
        assert [row["reservations"] for row in read(engine)] == [["it does not stop"]]


def test_every_table_that_shows_a_verdict_tells_of_a_constant_that_no_prompt_shows(tmp_path):
    path = str(tmp_path / "x.db")
    engine = database.open_database(path)
    lost = replace(ok(prompt("p", 1, 1), hash="r"), constants=[constant("dropped")])
    shared = {"dtype": "fp32", "runtime": "0.18.0", "backend": "genai", "precision": "fp32", "reference": "5.13.0"}
    for n, (builder, depth) in enumerate((("0.17.0", "all"), ("0.18.0", "all"), ("0.18.0", "2"))):
        limits, count = {"within": 10, "broken": 1000}, 4 if depth == "all" else 2
        values = {**lost.values, "hash": f"r{n}", "layer_count": count, "thresholds": limits}
        factors = shared | {"model": "random_some", "builder": builder, "layers": depth}
        store(engine, factors, changed(), replace(lost, values=values))
    items.load(engine, claims(tmp_path))
    texts = {
        "sweep": sweep.markdown(sweep.collect(path)),
        "history": history_report.markdown(history_report.collect(path, {"layers": ["all"]})),
        "regressions": regressions.markdown(regressions.collect(path, {"layers": ["all"]})),
        "depth": depth_report.markdown(depth_report.collect(path, {"builder": ["0.18.0"]})),
        "status": status.markdown(status.collect(path)),
    }
    for name, text in texts.items():
        assert "a constant is wrong" in text, (name, text)


def claims(folder) -> str:
    path = folder / "claims.yaml"
    path.write_text(
        "claims: [{name: c, what: it is right, filters: {builder: [0.18.0]}, expect: {verdict: [within_noise]}}]\n",
        encoding="utf-8",
    )
    return path


def test_the_multiple_of_other_prompts_is_not_that_of_what_is_not_finite():
    row = {"verdict": "non_finite", "multiple_largest": 2.9, "thresholds": {"within": 3.0}, "constants_wrong": None}
    assert verdict_words(row) == "non finite"
