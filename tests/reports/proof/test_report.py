"""Which cells make a design, and what its report says: on databases made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rows import changed, ok, prompt, store

from db import engine as database
from reports import proof

FLOOR = 0.5  # of `rows.prompt`: what is measured is given in multiples of it
SAME = {"transformers": "5.13.0"}
SHAPE = {"model": "m", "builder": "1", "patch": "none"}


def measured(multiple: float, right: bool = True, version: int = 1):
    """A result whose largest difference is `multiple` times its noise floor."""
    verdict = "within_noise" if multiple <= 10 else "broken"
    numbers = prompt("p", multiple * FLOOR, multiple * FLOOR, identical=right) | {"verdict": verdict}
    values = {"thresholds": {"within": 10.0, "broken": 1000.0}, "checkpoint_hash": "c", "noise_key": "n"}
    values |= {"measurement_version": version}
    return ok(numbers, hash=f"{multiple}{right}", **values)


@pytest.fixture
def lab(tmp_path):
    """(store a cell, the designs there are): patch by its changes' letters."""
    path = str(tmp_path / "x.db")
    engine = database.open_database(path)

    def add(changes, multiple, right=True, packages=None, made=None, result=None, **factors: str) -> int:
        patch = "+".join(changes) or "none"
        found = made or changed(*changes)
        new = result or measured(multiple, right)
        return store(engine, SHAPE | {"patch": patch} | factors, found, new, **(packages or {}))

    return add, lambda **filters: proof.collect(path, {"model": ["m"], **filters})["designs"]


def words(design: dict) -> dict[str, str]:
    return {verdict["change"]: verdict["word"] for verdict in design["verdicts"]}


def test_a_baseline_and_a_change_make_a_design(lab):
    add, designs = lab
    add("", 500)
    add("a", 2)
    (design,) = designs()
    assert words(design) == {"a": "proven"} and design["command"] == ""
    text = proof.markdown({"designs": [design]})
    assert "1, as it is" in text and "1 with only a" in text and "alone it takes 500 × noise to 2 × noise" in text


def test_the_newest_of_equal_cells_counts(lab):
    add, designs = lab
    add("", 500)
    add("a", 400)
    add("a", 2)
    assert words(designs()[0]) == {"a": "proven"}


def test_a_failure_is_a_baseline_whatever_measured_others_then(lab):
    add, designs = lab
    failed = {"status": "export_failed", "failed_stage": "export", "error_type": "KeyError", "error": "x"}
    add("", 0, result=ok(hash="f", **failed, measurement_version=1))
    add("a", 2, result=measured(2, version=2))
    assert words(designs()[0]) == {"a": "proven"}


def test_changes_that_always_come_together_are_one(lab):
    add, designs = lab
    add("", 500)
    add("ab", 2, patch="fix")
    assert words(designs()[0]) == {"fix": "proven"}


@pytest.mark.parametrize(("wrong", "said"), [(0, "show."), (1, "show, and a constant is wrong that they do not show.")])
def test_changes_are_complete_but_for_a_constant_that_no_prompt_shows(lab, wrong, said):
    add, designs = lab
    for changes, multiple in (("", 5e5), ("a", 500), ("b", 4e5)):
        add(changes, multiple)
    row = {
        "constants_key": "k", "kind": "window", "what": "attention", "layers": [0], "reference": "16", "export": None,
        "max_abs_diff": None, "positions": None, "says": "",
    }  # fmt: skip
    constants = [row | {"position": n, "verdict": verdict} for n, verdict in enumerate(["same"] + ["dropped"] * wrong)]
    add("ab", 2, result=replace(measured(2), constants=constants))
    (design,) = designs()
    assert f"complete, as far as these prompts {said}" in design["together"]
    verdicts = [line for line in proof.markdown({"designs": [design]}).splitlines() if "within noise" in line]
    assert any(") on these prompts, and a constant is wrong" in line for line in verdicts) is bool(wrong)


def test_a_change_that_was_there_already_is_the_baseline(lab):
    add, designs = lab
    add("", 500)
    add("a", 500, made=changed("a", status="present"))
    assert designs() == []


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"packages": {"transformers": "5.24.0"}}, "builder's transformers (5.13.0 / 5.24.0)"),
        (
            {"packages": {"transformers": "5.13.0"}, "made": changed("a", source_tree="other")},
            "builder sources (s / other)",
        ),
        ({"packages": {"transformers": "5.13.0"}, "builder": "2"}, "builder (1 / 2)"),
        ({"packages": {"transformers": "5.13.0"}, "options": "reference.attention=sdpa"}, "options"),
    ],
)
def test_a_pair_that_differs_in_something_else_is_confounded_and_says_in_what(lab, second, said):
    add, designs = lab
    add("", 500, packages=SAME)
    add("a", 2, **second)
    (design,) = designs()
    assert words(design) == {"a": "confounded"} and said in design["verdicts"][0]["why"]
    assert "by hashes" not in proof.markdown({"designs": [design]})


def test_a_change_that_does_another_thing_under_its_name_is_another(lab):
    add, designs = lab
    add("", 500)
    add("a", 2)
    add("ab", 300, made=changed("a", "b", hash="other"))
    (design,) = designs()
    assert len(design["rows"]) == 3 and set(words(design)) == {"a", "a+b"}


def test_what_is_missing_is_a_command(lab):
    add, designs = lab
    add("", 500)
    add("a", 480)
    add("ab", 2)
    (design,) = designs()
    assert words(design) == {"a": "not enough cells", "b": "contributes"}
    assert design["command"] == "python -m runner -m patch=b"


def test_another_builder_with_the_fix_and_the_same_numbers_is_told(lab):
    add, designs = lab
    add("", 500)
    add("a", 2)
    add("a", 2, builder="2", made=changed("a", status="present"))
    add("a", 90, builder="3", made=changed("a", status="present"))
    (design,) = designs()
    assert design["confirmed"] == [
        "2 with a gives the numbers of 1 with a (cells 3 and 2): nothing else in 1 contributed."
    ]


def test_designs_about_other_things_are_apart(lab):
    add, designs = lab
    for dtype in ("bf16", "fp32"):
        add("", 500, dtype=dtype)
        add("a", 2 if dtype == "bf16" else 499, dtype=dtype)
    assert [words(design)["a"] for design in designs()] == ["proven", "no effect"]


@pytest.mark.parametrize("status", ["patch_failed", "config_failed", "timeout", "env_failed", "reference_failed"])
def test_an_end_that_says_nothing_of_the_export_is_no_baseline(lab, status):
    add, designs = lab
    add("", 500)
    add("a", 490)
    add("", 1, result=ok(hash="f", status=status, error="e"), made=changed(patch_outcome="none"))
    assert words(designs()[0]) == {"a": "no effect"}


def test_a_failed_cell_does_not_join_what_differs(lab):
    add, designs = lab
    add("b", 1, result=ok(hash="f", status="export_failed", error="e"))
    add("", 500, packages={"transformers": "4"})
    add("a", 2, packages={"transformers": "5"})
    assert {word for design in designs() for word in words(design).values()} <= {"confounded", "makes it worse"}


@pytest.mark.parametrize("value", [{"noise_key": "other"}, {"stand_in": "fake"}, {"thresholds": {"within": 1e6}}])
def test_what_the_numbers_stand_on_is_compared_too(lab, value):
    add, designs = lab
    add("", 500)
    found = measured(2)
    add("a", 2, result=replace(found, values={**found.values, **value}))
    assert words(designs()[0]) == {"a": "confounded"}


def test_a_confirmation_is_of_a_mended_cell_and_says_what_is_left(lab):
    add, designs = lab
    add("", 5000, right=False)
    add("a", 500)
    add("b", 4000, right=False)
    add("a", 500, builder="2", made=changed("a", status="present"))
    add("b", 4000, right=False, builder="3", made=changed("b", status="present"))
    found = measured(500)
    other = replace(found, values={**found.values, "checkpoint_hash": "other"})
    add("a", 500, builder="4", made=changed("a", status="present"), result=other)
    (text,) = designs()[0]["confirmed"]
    assert text.startswith("2 with a gives the numbers of 1 with a") and text.endswith("what is left is in both.")


def prompts(*multiples: float, wrong: tuple[int, ...] = (), plain: tuple[int, ...] = ()):
    """A result with a prompt for each multiple. wrong: those with wrong text; plain: those with nothing expected."""
    made = []
    for number, multiple in enumerate(multiples):
        found = prompt(f"p{number}", multiple * FLOOR, multiple * FLOOR, identical=number not in wrong)
        found |= {"verdict": "within_noise" if multiple <= 10 else "broken", "candidate_sensible": number not in wrong}
        if number in plain:
            found |= {"sensible": None, "candidate_sensible": None, "outcome": "text"}
        made.append(found)
    values = {"thresholds": {"within": 10.0, "broken": 1000.0}, "checkpoint_hash": "c", "noise_key": "n"}
    return ok(*made, hash=f"{multiples}{wrong}{plain}", **values)


def test_one_prompt_without_expectation_hides_no_wrong_text(lab):
    add, designs = lab
    add("", 1, result=prompts(500, 500, 500, wrong=(0, 1, 2), plain=(2,)))
    add("a", 1, result=prompts(50, 50, 50, plain=(2,)))
    add("b", 1, result=prompts(500, 500, 500, wrong=(0, 1, 2), plain=(2,)))
    add("ab", 1, result=prompts(50, 50, 50, plain=(2,)))
    (design,) = designs()
    assert words(design) == {"a": "proven", "b": "no effect"}
    why = design["verdicts"][0]["why"]
    assert why.startswith("for the wrong text in 2 of 3: alone it mends it, 500 × noise and wrong text in 2 of 3")


def test_a_patch_that_ruins_all_texts_is_worse(lab):
    add, designs = lab
    add("", 1, result=prompts(500, 500, 500, plain=(2,)))
    add("a", 1, result=prompts(500, 500, 500, wrong=(0, 1, 2), plain=(2,)))
    assert words(designs()[0]) == {"a": "makes it worse"}


def test_a_fix_of_four_prompts_of_five_contributes_and_names_the_fifth(lab):
    add, designs = lab
    add("", 1, result=prompts(8e5, 8e5, 8e5, 8e5, 8e5))
    add("a", 1, result=prompts(2, 2, 2, 2, 8e5))
    (design,) = designs()
    assert words(design) == {"a": "contributes"} and design["verdicts"][0]["share"] == pytest.approx(0.8)
    text = proof.markdown({"designs": [design]})
    assert "alone 4 of 5 prompts within the noise; on p4 8.0e+05 × noise before and after" in text
    assert "Shares are of the log error of 1, as it is (mean over prompts: 4.9 powers of ten" in text


def test_two_faults_that_cancel_are_needed_together_and_no_line_says_otherwise(lab):
    add, designs = lab
    for changes, multiple in (("", 500), ("a", 1e5), ("b", 1e5), ("ab", 2)):
        add(changes, multiple)
    (design,) = designs()
    assert words(design) == {"a": "needed together", "b": "needed together"}
    text = proof.markdown({"designs": [design]})
    assert "makes it worse" not in text and "is the larger" not in text and "Both are needed." in text


def test_a_reference_that_makes_no_sense_is_named_with_its_prompts(lab):
    add, designs = lab
    found = prompt("odd", 500 * FLOOR, 500 * FLOOR, sensible=False)
    add("", 1, result=ok(found, hash="x", thresholds={"within": 10.0}))
    add("a", 1, result=ok(found, hash="x", thresholds={"within": 10.0}))
    assert "makes no sense on odd" in proof.markdown({"designs": designs()})


def test_no_design_says_what_to_run():
    assert "patch=none,rope_fix" in proof.markdown({"designs": []})
