"""The status table, from items and claims that were judged by hand, and once from a database."""

from __future__ import annotations

import shlex

import pytest

from db import engine as database
from db import items, record
from db.models import FACTORS, now
from db.record import NewResult, Provenance
from reports import status


def judged(verdict: str = "verified", **given) -> dict:
    base = {
        "name": "c", "item": "#1", "what": "it is right", "verdict": verdict, "cells": [3], "builders": ["0.14.1"],
        "day": "2026-11-29", "why": "", "held": [], "nonsense": 0, "stand_ins": [], "missing": 0, "commands": [],
        "each": [{"cell": 3, "why": given.get("why", "")}], "filters": {}, "weak": [], "unknown": [],
        "multiples": [], "identical": [], "errors": [],
    }  # fmt: skip
    return base | given


def item(*claims: dict, **given) -> dict:
    base = {"key": "#1", "what": "a fault", "link": None, "state": "Merged", "date": "2026-11-11", "states": []}
    return base | {"claims": list(claims)} | given


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_row_an_item_with_its_state_and_what_cells_say():
    header, _, line = status.markdown({"items": [item(judged())], "claims": []}).split("\n")
    assert cells(header) == ["Item", "What", "State (date)", "Newest cells say"]
    assert cells(line) == ["#1", "a fault", "Merged (2026-11-11)", "c: verified on 0.14.1, 2026-11-29 (1 cell)"]


def test_each_verdict_in_its_words():
    failed = "export_failed: KeyError: 'rope_type'"
    assert status.says(judged(cells=[1, 2], builders=["0.14.1", "main"])) == (
        "verified on 0.14.1, main, 2026-11-29 (2 cells)"
    )
    assert status.says(judged("contradicted", why=failed)) == (
        "contradicted on 0.14.1: export_failed: KeyError: 'rope_type', 2026-11-29 (cell 3)"
    )
    assert status.says(judged("contradicted", why="verdict within_noise", held=[4])).endswith(
        "verdict within noise, 2026-11-29 (cell 3); as claimed in cell 4"
    )
    assert status.says(judged("undecided", why="no noise floor")) == (
        "undecided on 0.14.1: no noise floor, 2026-11-29 (cell 3)"
    )
    assert status.says(judged("no cell yet", commands=["python x"])) == "no cell yet: `python x`"
    assert status.says(judged("partly verified", missing=2, commands=["python x"])).endswith(
        "(1 cell); no cell yet for the rest: `python x`"
    )
    assert "(1 cell, 2 matches on nonsense, by the stand-in fake)" in status.says(
        judged(nonsense=2, stand_ins=["fake"])
    )


def test_what_was_measured_stands_beside_the_word():
    found = {"multiples": [1.27, 465.2], "identical": ["5 of 5, 5–11 tokens"], "cells": [1, 2]}
    assert status.says(judged(**found)) == (
        "verified on 0.14.1, 2026-11-29 (2 cells, 1.3 – 465 × noise, identical 5 of 5, 5–11 tokens)"
    )
    assert "(1 cell, KeyError: 'rope_type')" in status.says(judged(errors=["KeyError: 'rope_type'"]))


def test_a_failure_that_is_not_named_is_weak_and_never_simply_verified():
    said = status.says(judged("weakly verified", weak=[3], errors=["KeyError: 'x'"]))
    assert said.startswith("weakly verified on 0.14.1") and "error_type or error_contains (cell 3)" in said


def test_an_item_without_a_claim_says_so():
    line = status.markdown({"items": [item()], "claims": []}).split("\n")[2]
    assert cells(line)[-1] == "no claim: no cell is held to it"


def test_what_is_not_known_is_told_with_the_command_that_runs_it_again():
    said = status.says(judged("undecided", why="killed: by SIGKILL", unknown=[3], commands=["python x"]))
    assert said == (
        "undecided on 0.14.1: killed: by SIGKILL, 2026-11-29 (cell 3); not known: cell 3, again: `python x`"
    )


def test_each_reason_has_its_cells():
    each = [{"cell": n, "why": f"reason {n % 5}" if n else ""} for n in range(7)]
    said = status.says(judged("contradicted", why="reason 1", cells=list(range(1, 7)), each=each))
    assert "reason 1, 2026-11-29 (cells 1, 6); reason 2 (cell 2); reason 3 (cell 3); 2 more reasons" in said


def test_claims_without_an_item_have_a_table_and_changed_states_a_history():
    states = [{"state": "In review", "date": "2026-11-01"}, {"state": "Merged", "date": "2026-11-11"}]
    text = status.markdown({"items": [item(states=states)], "claims": [judged(item=None)]})
    assert "| Claim | What " in text
    assert text.endswith("- #1: In review (2026-11-01), Merged (2026-11-11).")
    assert "States" not in status.markdown({"items": [item(states=states[1:])], "claims": []})


def test_what_stands_in_a_cell_cannot_break_the_table():
    odd = item(judged("contradicted", why="a|b\nc\x1b[31m"), what="x|y", key="[#1]", link="https://e.org/(1)|")
    line = status.markdown({"items": [odd], "claims": []}).split("\n")[2]
    assert "a\\|b c \\[31m" in line and "x\\|y" in line and "[\\[#1\\]](https://e.org/%281%29%7C)" in line
    long = status.says(judged("contradicted", why="x" * 500))
    assert len(long) < 200


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"model": ["tiny_llama"], "builder": ["0.14.1", "main"]}, ["model=tiny_llama builder=0.14.1,main"]),
        ({"builder": ["1"], "patch": ["none", "a+b"]}, ["builder=1 patch=none,[a,b]"]),
        ({"patch": ["a", "pr-12"]}, ["patch=a", "patch=pr patch.number=12"]),
        ({"patch": ["a+pr-12 reversed"]}, ["patch=[a,pr] patch.number=12 patch.reverse=true"]),
        ({"patch": ["v1..main"]}, ["patch=diff patch.from=v1 patch.to=main"]),
        ({"layers": ["a b"], "options": ["reference.attention=sdpa"]}, ['layers="a b" reference.attention=sdpa']),
        # Names that no file of conf/ has.
        ({"model": ["my lm"]}, ['model=path model.path="FOLDER/my lm"']),
        ({"model": ["random_qwen3"]}, ["model=random model.family=qwen3"]),
        ({"builder": ["mine"]}, ["builder=path builder.path=FOLDER/mine"]),
    ],
)
def test_the_command_for_cells_that_are_missing(filters, said):
    unquoted = [" ".join(shlex.split(command)) for command in status.commands(filters)]
    assert unquoted == [f"python -m runner -m {words}" for words in said]


def test_nothing_kept_says_what_to_do():
    assert "python -m db items load" in status.markdown({"items": [], "claims": []})


def test_from_a_database(tmp_path):
    engine = database.open_database(str(tmp_path / "x.db"))
    items.set_state(engine, "#1", "Open", "2026-11-01", what="a fault")
    filters = {"builder": "1", "patch": ["none", "fix"]}
    items.add_claim(engine, {"name": "c", "item": "#1", "what": "w", "filters": filters})
    items.add_claim(engine, {"name": "d", "what": "w", "filters": {"builder": "9"}})
    cell = {"hash": "h", "config": {}, **dict.fromkeys(FACTORS, "v"), "builder": "1", "patch": "fix"}
    _, (one,) = record.begin_sweep(engine, [], "1", [cell])
    values = {"status": "export_failed", "final": True, "measurement_version": 1, "error": "e", "error_type": "E"}
    record.record_result(engine, one, NewResult(values), Provenance())
    text = status.markdown(status.collect(str(tmp_path / "x.db")))
    assert f"c: contradicted on 1: export_failed: E: e, {now().date()} (cell {one})" in text
    assert "no cell yet: `python -m runner -m builder=9`" in text
    _, (two,) = record.begin_sweep(engine, [], "1", [cell | {"patch": "none"}])
    record.record_result(engine, two, NewResult({**values, "final": False, "error": "full"}), Provenance())
    text = status.markdown(status.collect(str(tmp_path / "x.db")))
    assert f"not known: cell {two}, again: `python -m runner -m builder=1 patch=none,fix`" in text
