"""What makes two builders of a line different findings, and what changed beside the builder."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rows import cell, ok, prompt

from db import engine as database
from db import history, record
from db.history import PromptNumbers, change_of
from db.record import Provenance
from reports import history as history_report
from reports import regressions


@pytest.fixture
def engine(tmp_path):
    yield (opened := database.open_database(str(tmp_path / "r.db")))
    opened.dispose()


def row(result: int, **given) -> dict:
    base = {
        "result": result, "status": "ok", "error": None, "verdict": "broken", "constants_wrong": None,
        "thresholds": {"within": 3.0, "broken": 1000.0},
    }  # fmt: skip
    return base | given


def numbers(multiple: float | None, verdict: str | None, identical: bool = True) -> PromptNumbers:
    return PromptNumbers(verdict, multiple, identical)


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        # Two right exports: no size of a number within the noise is a change.
        (numbers(0.4, "within_noise"), numbers(1.9, "within_noise"), ""),
        (numbers(0.4, "within_noise"), numbers(1.9, "near_tie", False), "identical texts 1 → 0 of 1"),
        # A break that begins after the first token is in the multiple over all steps.
        (numbers(1.3, "within_noise"), numbers(84000.0, "broken"), "within noise → broken in 1 of 1 prompts"),
        (numbers(500.0, "elevated"), numbers(900.0, "elevated"), ""),
        (numbers(100.0, "elevated"), numbers(900.0, "elevated"), "1e+02 × noise → 9e+02 × noise"),
        (numbers(9e4, "broken"), numbers(9e4, "broken", False), "identical texts"),
        (numbers(None, None), numbers(None, None), ""),
        (numbers(500.0, "elevated"), numbers(None, "non_finite"), "elevated → non finite"),
        (numbers(500.0, "elevated"), numbers(2.0, "non_finite"), "5e+02 × noise → not finite in p"),
    ],
)
def test_a_change_is_by_verdict_and_multiples_over_all_steps(one, two, said):
    found = change_of(row(1), row(2), {1: {"p": one}, 2: {"p": two}})
    assert said in found if said else found == ""


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        (numbers(5.0, "elevated"), False),
        (numbers(50.0, "elevated"), True),
        (numbers(None, "non_finite"), True),
        (numbers(5.0, "elevated", False), True),
    ],
)
def test_other_thresholds_alone_are_no_other_finding(after, changed):
    before, looser = numbers(5.0, "within_noise"), {"within": 10.0, "broken": 1000.0}
    found = change_of(row(1, thresholds=looser), row(2), {1: {"p": before}, 2: {"p": after}})
    assert bool(found) is changed


def test_a_change_in_a_prompt_that_is_not_the_worst_is_seen():
    bad, good = numbers(9e4, "broken"), numbers(1.0, "within_noise")
    found = change_of(row(1), row(2), {1: {"p": bad, "q": good}, 2: {"p": bad, "q": numbers(7e3, "broken")}})
    assert "within noise → broken in 1 of 2 prompts" in found and found.endswith("in q")


@pytest.mark.parametrize(("one", "two", "changed"), [(0, 2, True), (2, 1, False), (None, 2, False)])
def test_a_constant_that_is_wrong_from_here_on_is_a_change(one, two, changed):
    prompts = {1: {"p": numbers(1.0, "within_noise")}, 2: {"p": numbers(1.0, "within_noise")}}
    assert bool(change_of(row(1, constants_wrong=one), row(2, constants_wrong=two), prompts)) is changed


def test_failures_differ_by_status_and_error():
    one = row(1, status="export_failed", error="KeyError: 'a'")
    assert change_of(one, row(2, status="export_failed", error="KeyError: 'a'"), {}) == ""
    assert "KeyError: 'b'" in change_of(one, row(2, status="export_failed", error="KeyError: 'b'"), {})
    assert change_of(one, row(2), {2: {"p": numbers(1.0, "within_noise")}}).endswith("→ broken")


def environments(transformers: str, genai: str) -> dict:
    def packages(**given):
        return {"hash": str(sorted(given.items())), "platform": "p", "packages": given}

    fixed = packages(transformers="5.13.0")
    return {
        "builder": packages(**{"transformers": transformers, "onnxruntime-genai": genai}),
        "runtime": fixed, "reference": fixed,
    }  # fmt: skip


def store(engine, *cells: tuple[str, str, float, str]) -> list[int]:
    """Cells of (builder, transformers, largest difference, options)."""
    factors = [cell(builder=b, model="m") | {"options": o, "hash": f"{b} {o}"} for b, _, _, o in cells]
    _, ids = record.begin_sweep(engine, ["-m", f"builder={cells[0][0]}"], "1", factors)
    for one, (builder, transformers, worst, options) in zip(ids, cells, strict=True):
        new = ok(prompt("p", worst, worst), hash=f"{builder} {options}")
        new = replace(new, environments=environments(transformers, builder))
        record.record_result(engine, one, new, Provenance())
    return ids


def test_a_change_with_other_packages_is_confounded_and_names_the_cross(engine, tmp_path):
    store(engine, ("0.15.2", "4.57.6", 0.5, ""), ("0.16.0", "5.13.0", 500.0, ""))
    rows = history.history_rows(engine)
    (cross,) = history.crosses(engine, rows).values()
    assert cross.versions == ("4.57.6", "5.13.0") and not cross.decided
    text = history_report.markdown(history_report.collect(str(tmp_path / "r.db"), {}))
    assert "0.15.2 → 0.16.0: confounded, builder's transformers (4.57.6 / 5.13.0) changed too" in text
    assert "builder=0.15.2,0.16.0 builder.transformers=4.57.6,5.13.0" in text
    report = regressions.markdown(regressions.collect(str(tmp_path / "r.db"), {}))
    assert "within noise → broken" in report and "more than the builder changed: builder's transformers" in report


@pytest.mark.parametrize(
    ("older", "newer", "said"),  # differences of the older builder with the newer transformers, and the other way round
    [
        (510.0, 0.6, "transformers makes the change, not the builder"),
        (0.6, 510.0, "the builder makes the change, not transformers"),
        (510.0, 510.0, "each alone makes the change, transformers and the builder"),
        (0.6, 0.6, "neither transformers nor the builder makes the change alone: it needs both"),
        (510.0, None, "transformers alone makes the change; whether the builder does so too is not known"),
        (0.6, None, "transformers alone does not make the change: the builder has a part in it"),
        (None, 510.0, "the builder makes the change without transformers; whether that does so too is not known"),
        (None, 0.6, "the builder does not make the change alone: transformers has a part in it"),
        (5e4, None, "that decides nothing"),
    ],
)
def test_what_follows_from_a_cross_is_one_sentence_about_its_cells(engine, tmp_path, older, newer, said):
    store(engine, ("0.15.2", "4.57.6", 0.5, ""), ("0.16.0", "5.13.0", 500.0, ""))
    if older is not None:
        store(engine, ("0.15.2", "5.13.0", older, "builder.transformers=5.13.0"))
    if newer is not None:
        store(engine, ("0.16.0", "4.57.6", newer, "builder.transformers=4.57.6"))
    (cross,) = history.crosses(engine, history.history_rows(engine)).values()
    assert cross.decided[-1] == said and len(cross.decided) == 1 + (older is not None) + (newer is not None)
    text = history_report.markdown(history_report.collect(str(tmp_path / "r.db"), {}))
    assert said in text and ("The cells that decide it" in text) is (None in (older, newer))


def test_a_package_that_no_cross_exchanges_is_not_ruled_out():
    assert "or another package that came with it" in history.follows(False, False, others=True)


def test_a_change_of_the_builder_alone_is_not_confounded(engine):
    store(engine, ("0.13.2", "4.57.6", 0.5, ""), ("0.14.1", "4.57.6", 500.0, ""))
    assert history.crosses(engine, history.history_rows(engine)) == {}


def test_the_older_of_two_refs_is_not_the_newest(engine, tmp_path):
    factors = [cell(builder=b, model="m") for b in ("zz-old", "main")]
    _, ids = record.begin_sweep(engine, [], "1", factors)
    for one, name, day, ancestors, worst in (
        (ids[0], "a" * 40, 1, [], 500.0),
        (ids[1], "b" * 40, 9, ["a" * 12], 0.5),
    ):
        commit = {"commit": name, "date": datetime(2026, 1, day, tzinfo=UTC), "releases": {}, "ancestors": ancestors}
        provenance = Provenance({"source_commit": name, "source_dirty": False}, commit=commit)
        record.record_result(engine, one, ok(prompt("p", worst, worst), hash=name), provenance)
    assert [r["builder"] for r in history.history_rows(engine)] == ["zz-old", "main"]
    report = regressions.collect(str(tmp_path / "r.db"), {})
    assert [r["worse"] for r in report["rows"]] == [""]


def test_where_no_order_is_known_no_regression_is_claimed(engine, tmp_path):
    store(engine, ("here", "5.13.0", 0.5, ""), ("there", "5.13.0", 500.0, ""))
    report = regressions.collect(str(tmp_path / "r.db"), {})
    assert report["rows"][0]["worse"] == "" and not report["rows"][0]["order_known"]
    text = regressions.markdown(report)
    assert "not known: order" in text and "Nothing tells which of here and there" in text


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ([], ["it does not stop"], "nothing beside the numbers → it does not stop"),
        (["it does not stop"], [], "it does not stop → nothing beside the numbers"),
        (["x"], ["x"], ""),
        (None, ["x"], ""),  # whether that is new is not known
        ([], ["constants not compared"], ""),
    ],
)
def test_another_reservation_is_another_finding(one, two, said):
    assert change_of(row(1, reservations=one), row(2, reservations=two), {}) == said
