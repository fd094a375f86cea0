"""What is recorded comes back as it was, non-finite numbers included."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from rows import PATCH, cell, number, ok, prompt
from sqlalchemy import func, select

from db import detail, history, query, record
from db import engine as database
from db.models import Environment, MetricValue, Package, Result, Sweep
from db.record import NewResult, Provenance


@pytest.fixture
def engine(tmp_path):
    return database.open_database(str(tmp_path / "x.db"))


def test_the_tokens_compared_are_kept_as_a_range_over_prompts(engine):
    short, long = ({**prompt(name, 1, 1), "compared_tokens": count} for name, count in (("p", 5), ("q", 11)))
    alone = {**prompt("p", 1, 1), "compared_tokens": 0}
    sweep, ids = record.begin_sweep(engine, [], "1", [cell(model=name) for name in "abc"])
    for number_, prompts in enumerate([(short, long), (alone,), ()]):
        record.record_result(engine, ids[number_], ok(*prompts, hash=str(number_)), PATCH)
    found = query.cell_rows(engine, sweep=sweep)
    assert [(r["compared_tokens_least"], r["compared_tokens_largest"]) for r in found] == [
        (5, 11),
        (None,) * 2,
        (None,) * 2,
    ]


def test_a_result_comes_back(engine):
    sweep, (first, second) = record.begin_sweep(engine, ["a=b"], "1", [cell(model="one"), cell(model="two")])
    record.record_result(engine, first, ok(prompt("p", 0.5, 1.5), prompt("q", 0.25, 2.0, identical=False)), PATCH)
    rows = query.result_rows(engine)
    assert [(r["model"], r["prompt"], r["status"]) for r in rows] == [
        ("one", "p", "ok"), ("one", "q", "ok"), ("two", None, "pending"),
    ]  # fmt: skip
    assert tuple(rows[0]) == query.RESULT_COLUMNS
    assert (rows[0]["first_logits_max_abs_diff"], rows[0]["logits_max_abs_diff"]) == (0.5, 1.5)
    assert (rows[0]["noise_floor"], rows[0]["noise_ratio"], rows[0]["verdict"]) == (0.5, 3.0, "within_noise")
    assert [row["match"] for row in rows] == ["identical", "parts at 2", None]
    empty = {"error", "options", "stand_in", "constants_wrong", "reservations"}
    assert all(rows[0][name] is not None for name in query.RESULT_COLUMNS if name not in empty)
    (summary, pending) = query.cell_rows(engine, sweep=sweep)
    assert (summary["first_diff_least"], summary["first_diff_largest"]) == (0.25, 0.5)
    assert (summary["identical_count"], summary["prompts_count"]) == (1, 2)
    assert (summary["compared_tokens_least"], summary["compared_tokens_largest"]) == (3, 3)
    assert (summary["verdict"], summary["noise_ratio_largest"], summary["nonsense_count"]) == ("broken", 4.0, 0)
    assert pending["cell"] == second and pending["prompts_count"] is None


def test_a_match_on_nonsense_is_called_that_and_counted(engine):
    _, (one,) = record.begin_sweep(engine, [], "1", [cell()])
    record.record_result(engine, one, ok(prompt("p", 1, 1, sensible=False), prompt("q", 1, 1)), PATCH)
    assert [row["match"] for row in query.result_rows(engine)] == ["nonsense", "identical"]
    assert query.cell_rows(engine)[0]["nonsense_count"] == 1


def test_every_number_comes_back_by_prompt_and_by_step(engine):
    _, (one,) = record.begin_sweep(engine, [], "1", [cell()])
    record.record_result(engine, one, ok(prompt("p", 0.5, math.inf), prompt("q", 0.25, 1.0)), PATCH)
    whole = detail.metric_rows(engine, one, steps=False)
    assert [(row["prompt"], row["step"], row["logits_max_abs_diff"]) for row in whole] == [
        ("p", None, math.inf), ("q", None, 1.0),
    ]  # fmt: skip
    steps = detail.metric_rows(engine, one, steps=True)
    assert [(row["prompt"], row["step"], row["logits_max_abs_diff"]) for row in steps] == [
        ("p", 0, 0.5), ("p", 1, math.inf), ("q", 0, 0.25), ("q", 1, 1.0),
    ]  # fmt: skip


def test_what_results_share_is_stored_once(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(), cell()])
    given = {"prompts_key": "k", "position": 0, "prompt": "p", "text": "<bos>p", "ids": [2, 9]}
    moved = {"noise_key": "n", "variant": "dtype", "position": 0, "prompt": "p", "versus": "a / b", "largest": 0.5}
    found = {"kind": "prompt", "prompt": "p", "check": "bos", "evidence": "two"}
    for one in ids:
        new = replace(
            ok(prompt("p", 1, 1), prompts_key="k", noise_key="n"), inputs=[given], noise=[moved], findings=[found]
        )
        record.record_result(engine, one, new, PATCH)
    assert [(row["tokens"], row["ids"]) for row in detail.input_rows(engine, ids[1])] == [(2, [2, 9])]
    assert [value.largest for value in detail.noise_rows(engine, ["n"])["n"]] == [0.5]
    results = [row["result"] for row in query.cell_rows(engine)]
    assert [f.evidence for found in detail.findings_of(engine, results).values() for f in found] == ["two", "two"]
    assert [record.audit_findings(engine, result) for result in results] == [1, 1]


def test_numbers_of_an_older_measuring_are_in_no_table_with_newer_ones(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(builder="1"), cell(builder="2"), cell(builder="3")])
    record.record_result(engine, ids[0], ok(prompt("p", 1, 1), measurement_version=1), PATCH)
    record.record_result(engine, ids[1], ok(prompt("p", 1, 1), measurement_version=2), PATCH)
    failed = ok(status="export_failed", error="e", error_type="KeyError", measurement_version=1)
    record.record_result(engine, ids[2], failed, PATCH)
    assert [row["builder"] for row in history.history_rows(engine)] == ["2", "3"]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_comes_back(engine, odd):
    _, (one,) = record.begin_sweep(engine, [], "1", [cell()])
    record.record_result(engine, one, ok(prompt("p", 1.0, odd), prompt("q", 1.0, 2.0)), PATCH)
    rows = query.result_rows(engine)
    assert repr(rows[0]["logits_max_abs_diff"]) == repr(odd)
    (summary,) = query.cell_rows(engine)
    assert summary["non_finite_count"] == 1 and summary["diff_largest"] == 2.0
    with database.reading(engine) as session:
        kinds = session.execute(select(MetricValue.step, MetricValue.kind).order_by(MetricValue.prompt_result_id))
        assert (1, number(odd)["kind"]) in [tuple(row) for row in kinds]


def test_equal_environments_and_machines_are_one_row(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(), cell()])
    for one in ids:
        record.record_result(engine, one, ok(prompt("p", 1, 1)), PATCH)
    with database.reading(engine) as session:
        assert session.scalar(select(func.count(Environment.id))) == 1
        assert session.scalar(select(func.count(Package.name))) == 2
    assert detail.package_rows(engine, ids[0]) == [
        {"package": "numpy", "builder": "1", "runtime": "1", "reference": "1"},
        {"package": "torch", "builder": "2", "runtime": "2", "reference": "2"},
    ]


def test_only_a_final_result_is_found_again_and_the_newest(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(), cell(), cell()])
    record.record_result(engine, ids[0], ok(hash="x", status="killed", final=False), PATCH)
    assert record.find_result(engine, "x") is None
    record.record_result(engine, ids[1], ok(hash="x", status="export_failed", error="e", error_type="KeyError"), PATCH)
    newest = record.record_result(engine, ids[2], ok(prompt("p", 1, 1), hash="x"), PATCH)
    found = record.find_result(engine, "x")
    assert (found.id, found.status) == (newest, "ok")


def test_a_result_is_stored_whole_or_not_at_all(engine):
    _, (one,) = record.begin_sweep(engine, [], "1", [cell()])
    broken = prompt("p", 1, 1) | {"matched_tokens": None}
    with pytest.raises(Exception, match="NOT NULL"):
        record.record_result(engine, one, ok(prompt("q", 1, 1), broken), PATCH)
    with database.reading(engine) as session:
        assert session.scalar(select(func.count(Result.id))) == 0
        assert session.scalar(select(func.count(Environment.id))) == 0


def test_cells_that_share_a_result_keep_their_own_patch(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(patch="fix"), cell(patch="none")])
    result = record.record_result(engine, ids[0], ok(prompt("p", 1, 1)), PATCH)
    record.attach(engine, ids[1], result, False, Provenance({"patch_outcome": "none"}))
    rows = query.cell_rows(engine)
    assert [(r["result"], r["patch"], r["patch_outcome"]) for r in rows] == [
        (result, "fix", "applied"), (result, "none", "none"),
    ]  # fmt: skip
    assert detail.cell_detail(engine, ids[0])["changes"] == [{"change": "c", "status": "applied", "detail": "d"}]
    assert detail.cell_detail(engine, ids[1])["changes"] == []


def test_filters(engine):
    sweep, ids = record.begin_sweep(
        engine, [], "1", [cell(builder="1", patch="a"), cell(builder="1", patch="b"), cell(builder="2", patch="a")]
    )
    record.record_result(engine, ids[0], ok(prompt("p", 1, 1)), PATCH)
    record.record_result(
        engine, ids[1], ok(hash="y", status="export_failed", error="\n bad\nmore", error_type="E"), PATCH
    )

    def patches(**given):
        return [(r["builder"], r["patch"]) for r in query.cell_rows(engine, **given)]

    assert patches(filters={"builder": ["1"]}) == [("1", "a"), ("1", "b")]
    assert patches(filters={"builder": ["1", "2"], "patch": ["a"]}) == [("1", "a"), ("2", "a")]
    assert patches(status=["export_failed"]) == [("1", "b")]
    assert patches(status=["pending"]) == [("2", "a")]
    assert patches(sweep=sweep) == patches() and patches(sweep=99) == []
    assert query.cell_rows(engine, status=["export_failed"])[0]["error"] == "E: bad"
    assert query.sweep_id(engine, "latest") == query.sweep_id(engine, str(sweep)) == sweep
    with pytest.raises(query.NotInDatabase, match=r"--builder 9.*there are: 1, 2"):
        query.check_filters(engine, {"builder": ["9"]}, [])
    with pytest.raises(query.NotInDatabase, match="--status nonsense"):
        query.check_filters(engine, {}, ["nonsense"])
    for unknown in ("99", "x"):
        with pytest.raises(query.NotInDatabase, match=f"there are {sweep} to {sweep}"):
            query.sweep_id(engine, unknown)


def test_a_sweep_whose_process_is_gone_is_said_to_have_died(engine):
    sweep, _ = record.begin_sweep(engine, [], "1", [cell()])
    with database.writing(engine) as session:
        session.get(Sweep, sweep).pid = 2**22 + 5  # above any that Linux gives
    record.begin_sweep(engine, [], "1", [cell()])
    assert [row["state"] for row in query.sweep_rows(engine)] == ["died", "running"]


def release(builder: str, first: float, **values) -> tuple[dict, NewResult]:
    return cell(builder=builder, model="m"), ok(prompt("p", first, first), hash=builder, **values)


def test_history_marks_the_release_that_differs_from_the_one_before(engine):
    known = {"0.9.2": 1e-4, "0.10.0": 1.1e-4, "0.14.1": 5.0, "0.18.0": 5.0, "main": 1e-4}
    found = [release(builder, first) for builder, first in known.items()]
    _, ids = record.begin_sweep(engine, [], "1", [factors for factors, _ in reversed(found)])
    for one, (_, result) in zip(ids, reversed(found), strict=True):
        record.record_result(engine, one, result, PATCH)
    rows = history.history_rows(engine)
    assert [(r["builder"], r["changed"]) for r in rows] == [
        ("0.9.2", False), ("0.10.0", False), ("0.14.1", True), ("0.18.0", False), ("main", True),
    ]  # fmt: skip


def test_history_takes_the_newest_cell_and_keeps_lines_apart(engine):
    _, ids = record.begin_sweep(
        engine, [], "1", [cell(builder="1", model="a"), cell(builder="1", model="a"), cell(builder="2", model="b")]
    )
    for one, first in zip(ids, (1.0, 2.0, 3.0), strict=True):
        record.record_result(engine, one, ok(prompt("p", first, first), hash=str(first)), PATCH)
    rows = history.history_rows(engine)
    assert [(r["model"], r["first_diff_largest"], r["changed"]) for r in rows] == [("a", 2.0, False), ("b", 3.0, False)]


def test_failures_are_grouped_by_their_first_line(engine):
    _, ids = record.begin_sweep(engine, [], "1", [cell(builder=b) for b in ("0.9.2", "0.10.0", "0.11.0")])
    for one, error in zip(ids, ("'rope_type'", "'rope_type'\nmore", "other"), strict=True):
        record.record_result(engine, one, ok(status="export_failed", error=error, error_type="KeyError"), PATCH)
    groups = query.failure_groups(engine, status=["export_failed"])
    assert [(g["count"], g["error"], g["builders"]) for g in groups] == [
        (2, "KeyError: 'rope_type'", "0.9.2, 0.10.0"), (1, "KeyError: other", "0.11.0"),
    ]  # fmt: skip


def test_generation_settings_come_back_with_their_cell_and_an_own_way_beside(engine):
    setting = {"settings_key": "c", "name": "eos_token_id", "reference": "[1]", "export": "7", "verdict": "differs"}
    setting |= {"weight": "warning", "says": "why"}
    settings = [setting | {"position": 0}, setting | {"position": 1, "name": "max_length", "weight": "note"}]
    ran = {"prompt": "p", "ids": [2, 3], "tokens": [4, 1], "text": "a", "stopped": True, "rendered_by": "the runtime"}
    way = {"says": "does not stop", "explained": False, "generation": ran, "reference": {**ran, "why": ""}}
    for name in ("one", "two"):  # cells that share the artifact
        _, (ident,) = record.begin_sweep(engine, ["a"], "1", [cell(model=name)])
        values = {"settings_key": "c", "own_way": "never_stops", "own_way_detail": way}
        record.record_result(engine, ident, replace(ok(prompt("p", 1, 1), **values), settings=settings), PATCH)
        found = detail.cell_detail(engine, ident)
        assert [(row["name"], row["weight"]) for row in found["settings"]] == [
            ("eos_token_id", "warning"), ("max_length", "note"),
        ]  # fmt: skip
        export, reference = found["own way"]
        assert (export["says"], export["prompt_ids"], export["tokens"]) == ("does not stop", 2, 2)
        assert (reference["side"], reference["says"]) == ("reference", None)
        assert found["result"]["own_way"] == "never_stops" and "own_way_detail" not in found["result"]
    _, (ident,) = record.begin_sweep(engine, ["a"], "1", [cell(model="old")])
    record.record_result(engine, ident, ok(prompt("p", 1, 1)), PATCH)
    assert detail.cell_detail(engine, ident)["own way"] == detail.cell_detail(engine, ident)["settings"] == []
