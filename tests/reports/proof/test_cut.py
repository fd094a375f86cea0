"""A proof says on how many tokens it stands, and which texts were cut."""

from __future__ import annotations

import pytest
from rows import cell, changed, ok, prompt

from db import engine as database
from db import record
from reports.proof import report

CELLS = (("none", 50.0, changed()), ("fix", 1.0, changed("fix")))


@pytest.mark.parametrize(("outcome", "cells"), [("cut", "cells 1, 2"), ("answer", "")])
def test_a_proof_tells_its_tokens_and_what_the_limit_cut(tmp_path, outcome, cells):
    engine = database.open_database(str(tmp_path / "x.db"))
    known = {"sensible": None, "candidate_sensible": None} if outcome == "cut" else {}
    asked = [cell(patch=patch, model="m", max_new_tokens="7") for patch, _, _ in CELLS]
    _, ids = record.begin_sweep(engine, ["-m"], "1", asked)
    for number, (ident, (_, worst, made)) in enumerate(zip(ids, CELLS, strict=True)):
        one = prompt("p", worst, worst) | {"compared_tokens": 5}
        two = (
            prompt("q", worst, worst) | {"compared_tokens": 7, "outcome": outcome, "reference_outcome": outcome} | known
        )
        record.record_result(engine, ident, ok(one, two, hash=str(number), overlay_tree="t"), made)
    text = report.markdown(report.collect(str(tmp_path / "x.db"), {}))
    assert text.count("2 of 2, 5–7 tokens") == 2
    assert (f"Cut, {cells}: a text came to the limit (max_new_tokens 7)" in text) is (outcome == "cut")
