"""The pivot of a history, from rows made by hand."""

from __future__ import annotations

from db.history import history_line
from db.models import FACTORS
from db.query import release_order
from reports import history


def row(builder: str, changed: bool = False, **given) -> dict:
    base = dict.fromkeys(FACTORS, "x") | {
        "builder": builder, "changed": changed, "model": "m", "options": None, "status": "ok", "error": None,
        "first_diff_least": 1e-4, "first_diff_largest": 2e-4, "identical_count": 5, "prompts_count": 5,
        "multiple_largest": 50.0, "nonsense_count": 0, "findings": [], "cell": 1,
        "place": release_order(builder), "change": "",
    }  # fmt: skip
    base |= given
    return base | {"line": history_line(base)}


def test_release_by_model_with_changes_marked():
    rows = [
        row("0.9.2"), row("0.10.0", changed=True, status="export_failed", error="KeyError: 'x'"),
        row("0.9.2", model="n"), row("main", model="n"),
    ]  # fmt: skip
    lines = history.markdown({"rows": rows}).split("\n")
    assert [cell.strip() for cell in lines[0].strip("|").split("|")] == ["builder", "m", "n"]
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["0.9.2", "0.10.0", "main"]
    assert "KeyError: 'x' ◀" in lines[3] and "◀" not in lines[2]
    text = "\n".join(lines)
    assert "m: 2 eras: from 0.9.2 1.0e-04 – 2.0e-04 (× 50), 5 of 5; from 0.10.0 KeyError: 'x'." in text
    assert "n: 1 era:" in text


def test_lines_that_differ_in_more_than_the_model_say_so():
    header = history.markdown({"rows": [row("1", dtype="bf16"), row("1", dtype="fp32")]}).split("\n")[0]
    assert "m bf16" in header and "m fp32" in header


def test_a_match_on_nonsense_is_called_that():
    assert "5 of 5 (2 on nonsense)" in history.markdown({"rows": [row("1", nonsense_count=2)]})


def test_no_cells_says_what_to_run():
    assert "+experiment=history" in history.markdown({"rows": []})
