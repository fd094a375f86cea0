"""Whatever stands in a row, the output stays what it is."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db import output

ROWS = [{"a": 1, "b": 0.1 + 0.2, "c": None}, {"a": True, "b": float("nan"), "c": "x|y\n\x1b[31mz"}]
COLUMNS = ("a", "b", "c", "d")


def test_json_keeps_numbers_whole_and_parses(capsys):
    output.show(ROWS, COLUMNS, "json")
    one, two = json.loads(capsys.readouterr().out)
    assert one == {"a": 1, "b": 0.1 + 0.2, "c": None, "d": None}
    assert two["b"] == "NaN" and two["c"] == ROWS[1]["c"]


def test_csv_keeps_numbers_whole_and_parses(capsys):
    output.show(ROWS, COLUMNS, "csv")
    header, one, two = csv.reader(io.StringIO(capsys.readouterr().out))
    assert tuple(header) == COLUMNS
    assert float(one[1]) == 0.1 + 0.2 and one[2] == ""
    assert two[2] == ROWS[1]["c"]


def test_a_table_is_wide_enough_and_leaves_empty_columns_out(capsys):
    output.show([{"a": "x" * 300}], ("a", "b"), "table")
    shown = capsys.readouterr().out
    assert "x" * 300 in shown and " b" not in shown


def test_what_all_rows_share_is_said_once(capsys):
    output.show([{"a": 1, "b": "same"}, {"a": 2, "b": "same"}], ("a", "b"), "table")
    shown = capsys.readouterr().out
    assert shown.count("same") == 1 and "all rows: b same" in shown


def test_no_rows_is_said_and_is_still_json(capsys):
    output.show([], ("a",), "json")
    said = capsys.readouterr()
    assert json.loads(said.out) == [] and "no rows" in said.err


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_no_text_breaks_a_markdown_table(texts):
    lines = output.markdown_table(["h"], [[text] for text in texts]).split("\n")
    assert len(lines) == len(texts) + 2
    assert all(line.replace("\\|", "").count("|") == 2 for line in lines)


@given(st.text())
def test_markdown_shows_every_character_and_takes_none_for_markup(text):
    escaped = output.markdown_text(text)
    assert re.sub(r"\\([\\`*<>|\[\]~$_])", r"\1", escaped).replace("&amp;", "&") == output.short(text)
    bare = re.sub(r"\\.", "", escaped)
    assert not set(bare) & set("`*<>|[]~$") and "\n" not in escaped


@given(st.text())
def test_no_text_gets_out_of_a_code_span(text):
    span = output.markdown_code(text)
    fence = re.match("`*", span).group()
    assert not output.short(text) or (span.endswith(fence) and fence not in span[len(fence) : -len(fence)].strip(" "))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202egpj.exe", "a gpj.exe"),
        ("a\u200bb\ufeffc", "a b c"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("a\x1b[2Jb\x07", "a [2Jb"),
        ("one\ntwo\r\n\tthree", "one two three"),
    ],
)
def test_what_could_turn_or_hide_text_is_a_blank(text, shown):
    assert output.short(text) == shown


@pytest.mark.parametrize("shown", ["table", "md"])
def test_terminal_escapes_do_not_get_through(capsys, shown):
    output.show(ROWS, COLUMNS, shown)
    assert "\x1b" not in capsys.readouterr().out


def test_an_unknown_format_says_which_there_are():
    with pytest.raises(output.UnknownFormat, match="table, csv, json, md"):
        output.show([], (), "xml")
