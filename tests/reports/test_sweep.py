"""The table of a sweep, from rows made by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rows import changed, store

from db.engine import open_database
from db.models import FACTORS
from reports import notes, sweep
from reports.table import cells, multiple, number, span


def row(**given) -> dict:
    base = dict.fromkeys(FACTORS, "x") | {
        "cell": 7, "model": "m", "status": "ok", "error": None, "hint": None, "texts": "as expected",
        "patch_outcome": "none", "options": None, "source": "release x", "checkpoint_dtype": "fp32",
        "logit_range": [11.0, 13.0], "first_diff_least": 1e-4, "first_diff_largest": 2e-4, "diff_largest": 3e-4,
        "forced_diff_largest": 4e-4,
        "identical_count": 5, "prompts_count": 5, "stand_in": None, "non_finite_count": 0, "nonsense_count": 0,
        "noise_floor_largest": 2e-6, "multiple_largest": 150.0, "verdict": "elevated", "findings": [],
        "noise_left_out": [], "noise_rounded": None, "overridden": None,
        "thresholds": {"within": 10.0, "broken": 1000.0},
    }  # fmt: skip
    return base | given


def table(*rows: dict) -> str:
    return sweep.table({"rows": list(rows)})


def columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_one_row_an_export_with_the_factors_that_vary():
    header, _, one, two, *rest = table(row(builder="0.14.1"), row(builder="0.18.0", dtype="bf16")).split("\n")
    assert columns(header)[:5] == ["cell", "model", "dtype", "builder", "patch"]
    assert "1.0e-04 – 2.0e-04" in one and "5 of 5" in one and "0.14.1" in one and "bf16" in two
    assert "layers x" in "\n".join(rest) and "dtype" not in "\n".join(rest)
    assert "span 11.0 – 13.0" in "\n".join(rest)


def test_each_diff_stands_beside_the_noise_with_its_multiple_and_verdict():
    header, _, line, *rest = table(row()).split("\n")
    found = dict(zip(columns(header), columns(line), strict=True))
    assert (found["Noise floor"], found["× noise"], found["Verdict"]) == ("2.0e-06", "150", "elevated (over 10 ×)")
    assert "Up to 10 is within noise, above 1000 broken" in "\n".join(rest)
    unmeasured = table(row(noise_floor_largest=None, multiple_largest=None, verdict=None))
    assert "no noise floor" in unmeasured and "within noise, above" not in unmeasured


def test_an_export_in_another_precision_is_held_to_its_own_noise():
    int4 = row(cell=8, precision="int4", noise_rounded="float32 / int4", thresholds={"within": 3.0, "broken": 10.0})
    text = table(row(), int4, int4 | {"cell": 9})
    assert "floor. Up to 10 is within noise, above 1000 broken" in text
    assert text.count("rounded so (float32 / int4). Up to 3 is within noise, above 10 broken") == 1
    alone = table(int4)
    assert "Noise floor: how far" in alone and "Up to 10" not in alone and "Up to 3" in alone


def test_without_the_noise_of_a_precision_the_reason_is_told_with_the_cells():
    none = {"noise_floor_largest": None, "multiple_largest": None, "verdict": None}
    rows = [row(cell=n, noise_left_out=["precision: fp16 gives nothing", "attention: too"], **none) for n in (3, 4)]
    text = table(*rows)
    assert "no floor and no verdict, cells 3, 4: fp16 gives nothing." in text and "no noise floor" in text
    assert "Left out of m's noise floor: attention: too." in text and "Noise floor: how far" not in text


def test_a_match_on_nonsense_is_called_that():
    assert "5 of 5 (3 on nonsense)" in table(row(nonsense_count=3))


def test_a_match_has_the_number_of_tokens_compared():
    assert "| 5 of 5, 5–11 tokens |" in table(row(compared_tokens_least=5, compared_tokens_largest=11))
    assert "| 5 of 5, 7 tokens |" in table(row(compared_tokens_least=7, compared_tokens_largest=7))
    assert "| 5 of 5, 1 token |" in table(row(compared_tokens_least=1, compared_tokens_largest=1))
    mixed = row(compared_tokens_least=2, compared_tokens_largest=3, nonsense_count=1)
    assert "| 5 of 5 (1 on nonsense), 2–3 tokens |" in table(mixed)
    assert " tokens" not in table(row(compared_tokens_least=None, compared_tokens_largest=None)).split("\n")[2]


def said(*outcomes: str, reference: str = "answer") -> dict:
    """A prompt for each outcome, as `sweep.from_prompts` reads it."""
    known = {"answer": True, "text": None, "cut": None}
    prompts = [
        SimpleNamespace(
            outcome=word, candidate_sensible=known.get(word, False), sensible=known.get(reference, False),
            reference_outcome=reference, reference_range=1.0,
        )
        for word in outcomes
    ]  # fmt: skip
    return sweep.from_prompts(prompts, {"non_finite_count": 0})


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (["answer"] * 3, "as expected"),
        (["answer", "answer", "cut"], "2 as expected, 1 cut"),
        (["answer", "text"], "1 as expected, 1 not judged"),
        (["cut", "cut"], "2 cut"),
        (["text", "text"], ""),
        (["wrong", "loop", "wrong"], "2 wrong, 1 loop"),
        (["markers", "text", "cut"], "1 cut, 1 markers, 1 not judged"),
        ([], ""),
    ],
)
def test_texts_are_as_expected_only_where_all_are(outcomes, words):
    assert said(*outcomes)["texts"] == words


def test_what_the_limit_cut_is_told_with_its_cells_and_the_limit():
    assert said("cut", "answer")["cut_count"] == 1 and said("answer", reference="cut")["cut_count"] == 1
    text = table(row(cell=3, cut_count=2, max_new_tokens="7"), row(cell=4, cut_count=0), row(cell=5))
    assert "Cut, cell 3: a text came to the limit (max_new_tokens 7) before its end" in text
    assert "Cut, " not in table(row(cell=4, cut_count=0))


def test_a_variant_that_is_no_noise_is_named_once():
    text = table(row(noise_left_out=["attention: sdpa differs"]), row(cell=8, noise_left_out=["attention: too"]))
    assert text.count("Left out of m's noise floor") == 1 and "sdpa differs" in text


def test_a_finding_is_told_once_with_its_cells():
    audit = {"kind": "prompt", "prompt": "p", "check": "split_marker", "evidence": "<a> -> ['<', 'a', '>']"}
    loaded = {"kind": "warning", "prompt": None, "check": "loaded_dtype", "evidence": "fp32, not bf16"}
    text = table(row(cell=1, findings=[audit]), row(cell=2, findings=[audit, loaded]))
    assert text.count("Prompt audit, cells 1, 2, prompt p: split_marker: `<a> -> ['<', 'a', '>']`.") == 1
    assert "Warning, cell 2: loaded_dtype: `fp32, not bf16`." in text


def test_what_a_check_says_of_several_prompts_is_told_of_one():
    bos = [{"kind": "prompt", "prompt": p, "check": "bos", "evidence": f"at {n}"} for n, p in enumerate("pqr")]
    text = table(row(cell=1, findings=bos), row(cell=2, findings=bos))
    assert text.count("Prompt audit") == 1
    assert "Prompt audit, cells 1, 2, prompts p, q, r: bos: `at 0` (p's; the others' is alike)." in text
    # What is a warning says what it says.
    text = table(row(findings=[{**finding, "kind": "warning", "prompt": None} for finding in bos]))
    assert text.count("Warning") == 3


def test_what_a_generation_config_asked_for_is_told():
    text = table(row(cell=4, overridden={"reference": {"repetition_penalty": 1.1}}))
    assert "Left out of decoding, cell 4: the reference's repetition_penalty 1.1." in text


def test_many_findings_are_cut_with_a_word_of_where_they_are():
    many = [{"kind": "warning", "prompt": None, "check": "c", "evidence": str(n)} for n in range(40)]
    text = table(row(findings=many))
    assert text.count("Warning, cell 7") == notes.MOST_FINDINGS
    assert "28 more findings: `python -m db show 7` and others" in text


def test_the_largest_is_that_of_both_modes():
    header, _, line, *_ = table(row()).split("\n")
    assert dict(zip(columns(header), columns(line), strict=True))["Largest"] == "4.0e-04"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([3], "cell 3"), ([4, 3], "cells 3, 4"), ([1, 2, 3, 9], "cells 1 – 3, 9"), (range(0, 40, 2), "14 …")],
)
def test_cells_are_named_in_ranges(numbers, said):
    assert cells(numbers).endswith(said)


def test_what_reaches_inside_a_factor_is_a_column():
    text = table(row(options="reference.attention=sdpa"), row())
    assert "options" in columns(text.split("\n")[0]) and "reference.attention=sdpa" in text
    assert "options reference.attention=sdpa" in table(row(options="reference.attention=sdpa"))


def test_a_dtype_as_stored_says_what_that_is():
    assert "dtype stored (fp32)" in table(row(dtype="stored"))


def test_a_failed_export_shows_its_error_and_what_to_do():
    failed = row(cell=3, status="export_failed", error="KeyError: 'rope_type'", hint="do this")
    text = table(failed, row())
    assert "export_failed: KeyError: 'rope_type'" in text.split("\n")[2]
    assert "Cell 3: export_failed: KeyError: 'rope_type' (do this); `python -m db show 3`" in text


def test_a_long_error_is_cut_in_the_table_and_whole_below_it():
    text = table(row(status="run_failed", error="x" * 300))
    assert len(text.split("\n")[2]) < 170 and "x" * 300 in text


def test_equal_failures_are_one_line():
    failed = [row(cell=n, status="skipped", error="interrupted", hint="again") for n in range(12)]
    assert "Cells 0 – 11: skipped: interrupted (again)" in table(*failed)


def test_a_patch_that_changed_nothing_is_said():
    text = table(row(patch="fix", patch_outcome="present", builder="main", source="git abc (main)"))
    assert "fix is already in builder main." in text and "Builder main is git abc (main)." in text


def test_a_stand_in_is_named():
    assert "stand-in fake" in table(row(stand_in="fake"))


def test_a_number_that_is_not_finite_is_not_hidden_by_those_that_are():
    line = table(row(non_finite_count=1, texts="1 not finite")).split("\n")[2]
    assert "not finite" in line and "1.0e-04" not in line


def test_the_report_stands_alone():
    about = {"sweep": 1, "started": "2026-11-29 10:00:00", "command": "python -m runner -m a=b"}
    text = sweep.markdown({"sweep": about, "rows": [row()], "packages": {"transformers": "5.13.0"}})
    assert text.startswith("Sweep 1, 2026-11-29 10:00:00 UTC: `python -m runner -m a=b`")
    assert "Packages: transformers 5.13.0." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.23e-6, "1.2e-06"), (0.0023, "0.0023"), (26.84, "26.8"), (0.0, "0"), (float("nan"), "nan"), (None, "")],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.34, "1.3"),
        (465.4, "465"),
        (9999.0, "9999"),
        (2.6e6, "2.6e+06"),
        (float("inf"), "inf"),
        (None, ""),
    ],
)
def test_multiples(value, text):
    assert multiple(value) == text


def test_a_range_of_one_number_is_that_number():
    assert span(0.5, 0.5) == "0.5" and span(0.5, 1.0) == "0.5 – 1" and span(None, None) == ""


def test_how_exports_run_their_own_way_is_told_with_their_cells():
    ran = {"own_way": "same", "own_way_detail": {"says": "same text, stops", "explained": False}}
    ran["own_way_detail"]["generation"] = {"prompt": "english"}
    idle = {"own_way": "not_run", "own_way_detail": {"says": "not run: no loop", "explained": False}}
    text = table(row(**ran), row(cell=8, **ran), row(cell=9, **idle), row(cell=10))
    assert "Cells 7, 8, run their own way on prompt english: same text, stops." in text
    assert "Cell 9, run its own way: not run: no loop." in text and text.count("transformers' generate()") == 1


def test_an_export_that_does_not_stop_is_no_export_within_noise():
    detail = {"says": "does not stop", "explained": False, "generation": {"prompt": "english"}}
    finding = {"kind": "warning", "prompt": None, "check": "own_way", "evidence": "does not stop"}
    said = {"own_way": "never_stops", "own_way_detail": detail, "reservations": ["run its own way it does not stop"]}
    text = table(row(verdict="within_noise", findings=[finding], **said))
    assert "| within noise (up to 10 ×); run its own way it does not stop |" in text
    assert text.count("own_way: `does not stop`") == 1 and "own way on prompt" not in text


def test_a_package_that_its_role_does_not_have_has_no_version(tmp_path):
    engine = open_database(str(tmp_path / "v.db"))
    store(engine, {"model": "m"}, changed(), transformers="5.13.0")  # the builder's alone
    assert sweep.collect(str(tmp_path / "v.db"))["packages"] == {"torch": "2"}
