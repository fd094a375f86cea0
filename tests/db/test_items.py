"""Items and claims are kept as they were given, refused whole when they are odd, and judged by the newest cells."""

from __future__ import annotations

import math

import pytest
import yaml
from typer.testing import CliRunner

from db import engine as database
from db import items, query, record
from db.items import cli as items_cli
from db.models import FACTORS, now
from db.record import NewResult, Provenance
from runner import failures, paths

ITEM = {"key": "#1", "what": "a fault", "link": "https://example.org/1", "state": "Open", "date": "2026-11-01"}
CLAIM = {"name": "c", "item": "#1", "what": "it is right", "filters": {"builder": "1"}, "expect": {"identical": "all"}}


@pytest.fixture
def engine(tmp_path):
    return database.open_database(str(tmp_path / "x.db"))


@pytest.fixture
def file(tmp_path):
    def write(**content) -> str:
        path = tmp_path / "status.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


def number(value: float | None) -> dict:
    kind = "nan" if value != value else "+inf" if value == math.inf else "finite"
    return {"value": value if kind == "finite" else None, "kind": kind}


def prompt(
    ratio: float | None = 2.0,
    identical: bool = True,
    answer: bool | None = True,
    verdict="within_noise",
    name="p",
    outcome="answer",
    text="b",
) -> dict:
    return {
        "prompt": name, "steps": {}, "parting": None, "vocab": [8, 8], "matched_tokens": 2, "compared_tokens": 3,
        "metrics": dict.fromkeys(record.OF_THE_EXPORT, number(1.0)), "noise_floor": number(0.5 if ratio else None),
        "noise_ratio": number(ratio), "forced_noise_ratio": number(ratio), "reference_range": number(10.0),
        "verdict": verdict, "within_bands": True, "tokens_identical": identical, "sensible": answer,
        "candidate_sensible": answer, "reference_outcome": "answer", "outcome": outcome,
        "reference_text": "a", "candidate_text": text,
    }  # fmt: skip


SENSIBLE_UNKNOWN = "sensible 0 of 1, the others not known (nothing expected, not decided, or cut)"


def ran(engine, *prompts: dict, status: str = "ok", final: bool = True, factors=None, **values) -> int:
    """A cell with its result; returns its id."""
    cell = {"hash": "h", "config": {}, **dict.fromkeys(FACTORS, "v"), "builder": "1", **(factors or {})}
    _, (one,) = record.begin_sweep(engine, [], "1", [cell])
    common = {"status": status, "final": final, "measurement_version": 1, **values}
    record.record_result(engine, one, NewResult(common, prompts=prompts), Provenance())
    return one


def judged(engine, expect=None, **filters) -> dict:
    claim = items.checked_claim({**CLAIM, "filters": filters or CLAIM["filters"], "expect": expect}, "here")
    return items.judge(claim, items.newest_cells(engine, claim))


# Keeping


def test_a_file_is_kept_and_a_second_load_adds_nothing(engine, file):
    path = file(items=[ITEM], claims=[CLAIM])
    assert items.load(engine, path) == {"items": 1, "states": 1, "claims": 1}
    assert items.load(engine, path) == {"items": 1, "states": 0, "claims": 1}
    (row,) = items.item_rows(engine)
    assert {key: row[key] for key in ITEM} == ITEM and len(row["states"]) == 1
    (claim,) = items.claim_rows(engine)
    assert (claim["filters"], claim["expect"]) == ({"builder": ["1"]}, {"status": ["ok"], "identical": "all"})


def test_a_new_state_or_date_is_kept_beside_the_old_ones(engine, file):
    items.load(engine, file(items=[ITEM]))
    assert items.set_state(engine, "#1", "Merged", "2026-11-11")
    assert not items.set_state(engine, "#1", "Merged", "2026-11-11")
    assert items.set_state(engine, "#1", "Reverted")
    assert items.set_state(engine, "#1", "Reported", "2026-10-01")  # what was so before is no news of today
    items.load(engine, file(items=[ITEM]))
    (row,) = items.item_rows(engine)
    assert [state["state"] for state in row["states"]] == ["Reported", "Open", "Merged", "Reverted"]
    assert (row["state"], row["what"], row["link"]) == ("Reverted", "a fault", "https://example.org/1")


def test_an_item_is_described_on_its_first_use(engine):
    with pytest.raises(items.ItemsProblem, match="--what"):
        items.set_state(engine, "#9", "Open")
    assert items.set_state(engine, "#9", "Open", what="new")
    assert items.item_rows(engine)[0]["what"] == "new"


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("items", {"stat": "x"}, r"items\[0\]: there is no key 'stat'; did you mean state\?; allowed: key, what"),
        ("items", {"state": None}, "state is missing; needed: key, what, state, date"),
        ("items", {"key": None}, "needs quotes"),
        ("items", {"date": "11 November"}, "11 November is no date; allowed: YYYY-MM-DD"),
        ("items", {"date": "2026-02-30"}, "is no date"),
        ("items", {"link": "javascript:x"}, "allowed: https"),
        ("items", {"what": "a\x07b"}, "text that can be printed"),
        ("claims", {"filters": {"bilder": "1"}}, "there is no factor 'bilder'; did you mean builder"),
        ("claims", {"filters": {}}, "FACTOR: VALUE"),
        ("claims", {"filters": {"builder": 0.9}}, "put it in quotes"),
        ("claims", {"filters": {"builder": []}}, "list is empty"),
        ("claims", {"expect": {"identcal": "all"}}, "no expectation 'identcal'; did you mean identical"),
        ("claims", {"expect": {"identical": "most"}}, "'most' is no number of prompts; allowed: all, none, a whole"),
        ("claims", {"expect": {"identical": {"from": 3, "to": 2}}}, "N not above M"),
        ("claims", {"expect": {"sensible": {"form": 3}}}, "no key 'form'; did you mean from"),
        ("claims", {"expect": {"error_type": "KeyError"}}, "is of a failure; add status: export_failed"),
        ("claims", {"expect": {"multiple_at_least": 5, "multiple_at_most": 2}}, "least 5 is not below .* 2: no number"),
        ("claims", {"expect": {"above": 5, "at_most": 2}}, "above 5 is not below at_most 2"),
        ("claims", {"expect": {"above": 5, "at_most": 5}}, "above 5 is not below at_most 5"),
        ("claims", {"expect": {"diff_at_most": "x"}}, "'x' is no difference; allowed: a number"),
        ("claims", {"expect": {"outcome": {"p": "wrng"}}}, "no outcome 'wrng'; did you mean wrong"),
        ("claims", {"expect": {"outcome": "wrong"}}, "PROMPT: WORD pairs are wanted"),
        ("claims", {"expect": {"text": "othr"}}, "no text 'othr'; did you mean other"),
        ("claims", {"expect": {"text": {"p": {"is": "same"}}}}, "is: reference, is: other"),
        ("claims", {"expect": {"text": {"p": {"has": "same"}}}}, "no key 'has'"),
        ("claims", {"expect": {"verdict": "within_nois"}}, "did you mean within_noise"),
        ("claims", {"expect": {"status": ["fine"]}}, "no status 'fine'"),
        ("claims", {"expect": {"at_most": "many"}}, "no multiple of the noise"),
        ("claims", {"expect": {"above": math.nan}}, "no multiple of the noise"),
        ("claims", {"expect": {"status": "export_failed", "above": 1}}, "cannot be asked of cells that fail"),
        ("claims", {"item": "#7"}, "no item '#7'; .*allowed: #1"),
    ],
)
def test_what_is_odd_is_refused_and_nothing_of_the_file_is_kept(engine, file, section, change, said):
    content = {"items": [ITEM], "claims": [CLAIM]}
    content[section] = [{**content[section][0], **change}]
    with pytest.raises(items.ItemsProblem, match=said):
        items.load(engine, file(**content))
    assert items.item_rows(engine) == items.claim_rows(engine) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("items: [", "no YAML"),
        ("- a", "keys: items, claims"),
        ("thing: 1", "no key 'thing'"),
        ("items: 1", "a list is wanted"),
        ("items: []\nitems: []", "'items' stands twice"),
        ("items: [{key: a, what: b, state: c, date: 2026-02-31}]", "YAML"),
        ("{[1]: 2}", "no YAML"),
    ],
)
def test_a_file_that_is_none_is_refused(engine, tmp_path, text, said):
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(items.ItemsProblem, match=said):
        items.load(engine, tmp_path / "x.yaml")
    with pytest.raises(items.ItemsProblem, match="cannot be read"):
        items.load(engine, tmp_path / "none.yaml")


def test_a_key_may_stand_once(engine, file):
    with pytest.raises(items.ItemsProblem, match="'#1' stands twice"):
        items.load(engine, file(items=[ITEM, ITEM]))


def test_statuses_are_those_of_the_runner():
    assert items.STATUSES == failures.STATUSES


def test_the_shipped_file_is_right(engine):
    assert items.load(engine, paths.PROJECT / "docs" / "status.yaml")["items"] == 4


# Judging


def test_no_cell_yet(engine):
    ran(engine, prompt(), factors={"builder": "2"})
    found = judged(engine)
    assert (found["verdict"], found["cells"], found["day"], found["missing"]) == ("no cell yet", [], None, 1)


def test_the_newest_cell_of_each_combination_counts(engine):
    ran(engine, prompt(identical=False))
    newer, other = ran(engine, prompt()), ran(engine, prompt(), factors={"dtype": "bf16"})
    found = judged(engine, {"identical": "all"})
    assert (found["verdict"], found["cells"], found["builders"]) == ("verified", [newer, other], ["1"])
    assert found["day"] == now().date().isoformat()


def test_a_cell_that_was_left_off_does_not_hide_the_one_before(engine):
    one = ran(engine, prompt())
    ran(engine, status="skipped", final=False)
    record.begin_sweep(engine, [], "1", [{"hash": "h", "config": {}, **dict.fromkeys(FACTORS, "v"), "builder": "1"}])
    assert judged(engine)["cells"] == [one]


@pytest.mark.parametrize(
    ("expect", "cell", "verdict", "why"),
    [
        ({"verdict": "within_noise"}, prompt(), "verified", ""),
        ({"verdict": ["near_tie", "elevated"]}, prompt(), "contradicted", "verdict within_noise"),
        ({"verdict": "elevated"}, prompt(None, verdict=None), "undecided", "no noise floor"),
        ({"identical": "all"}, prompt(identical=False), "contradicted", "identical 0 of 1, 3 tokens"),
        ({"sensible": "all"}, prompt(answer=False), "contradicted", "sensible 0 of 1"),
        (
            {"sensible": "all"},
            prompt(answer=None),
            "undecided",
            "sensible 0 of 1, the others not known (nothing expected, not decided, or cut)",
        ),
        ({"at_most": 2}, prompt(2.0), "verified", ""),
        ({"at_most": 1.5}, prompt(2.0), "contradicted", "2 × noise, expected at most 1.5"),
        ({"at_most": 9}, prompt(None), "undecided", "no noise floor"),
        ({"at_most": 9}, prompt(math.inf), "contradicted", "inf × noise, expected at most 9"),
        ({"above": 2}, prompt(2.0), "contradicted", "2 × noise, expected above 2"),
        ({"above": 2}, prompt(math.nan), "verified", ""),
        ({"multiple_at_least": 1, "multiple_at_most": 3}, prompt(2.0), "verified", ""),
        ({"multiple_at_least": 2.5}, prompt(2.0), "contradicted", "2 × noise, expected at least 2.5"),
        ({"first_diff_at_most": 0.5}, prompt(), "contradicted", "1 at the first token, expected at most 0.5"),
        ({"first_diff_at_least": 0.5, "diff_at_most": 2}, prompt(), "verified", ""),
        ({"diff_at_least": 2}, prompt(), "contradicted", "1 at the largest step, expected at least 2"),
        ({"identical": "none"}, prompt(), "contradicted", "identical 1 of 1, 3 tokens, expected 0"),
        ({"identical": "none"}, prompt(identical=False), "verified", ""),
        ({"identical": 1}, prompt(), "verified", ""),
        ({"identical": {"from": 2}}, prompt(), "contradicted", "identical 1 of 1, 3 tokens, expected 2 to all"),
        ({"identical": {"to": 1}}, prompt(), "verified", ""),
        ({"sensible": "none"}, prompt(answer=False), "verified", ""),
        ({"sensible": "none"}, prompt(answer=None), "undecided", SENSIBLE_UNKNOWN),
        ({"sensible": {"from": 0, "to": 1}}, prompt(answer=None), "verified", ""),
        ({"outcome": {"p": "wrong"}}, prompt(), "contradicted", "p: answer, expected wrong"),
        ({"outcome": {"all": ["wrong", "answer"]}}, prompt(), "verified", ""),
        ({"outcome": {"q": "wrong"}}, prompt(), "undecided", "no prompt q; there are: p"),
        ({"text": "other"}, prompt(), "contradicted", "p: the reference's text"),
        ({"text": "reference"}, prompt(identical=False), "contradicted", "p: not the reference's text"),
        ({"text": {"p": "Rome"}}, prompt(text="It is Rome."), "verified", ""),
        ({"text": {"p": "Rome"}}, prompt(text="Paris"), "contradicted", "p: it says 'Paris', expected 'Rome' in it"),
        ({"text": {"p": {"contains": ["Rome", "Roma"]}}}, prompt(text="Roma."), "verified", ""),
        ({"text": {"p": {"is": "other", "equals": "Rome"}}}, prompt(identical=False, text="Rome"), "verified", ""),
        ({"text": {"all": {"equals": "Rome"}}}, prompt(), "contradicted", "p: it says 'b', expected 'Rome'"),
    ],
)
def test_each_expectation(engine, expect, cell, verdict, why):
    ran(engine, cell)
    found = judged(engine, expect)
    assert (found["verdict"], found["why"]) == (verdict, why)


def test_a_failure_contradicts_unless_it_is_expected(engine):
    one = ran(engine, status="export_failed", error="'rope_type'", error_type="KeyError")
    found = judged(engine)
    assert (found["verdict"], found["why"]) == ("contradicted", "export_failed: KeyError: 'rope_type'")
    assert found["cells"] == [one]


@pytest.mark.parametrize(
    ("more", "verdict", "why"),
    [
        ({}, "weakly verified", ""),
        ({"error_type": "KeyError"}, "verified", ""),
        ({"error_type": ["ValueError", "KeyError"]}, "verified", ""),
        ({"error_contains": "rope_type"}, "verified", ""),
        ({"error_type": "KeyError", "error_contains": ["rope_scaling", "rope_type"]}, "verified", ""),
        ({"error_type": "ValueError"}, "contradicted", "export_failed: KeyError: 'rope_type', expected ValueError"),
        ({"error_contains": "theta"}, "contradicted", "export_failed: KeyError: 'rope_type', expected 'theta' in it"),
    ],
)
def test_a_claim_about_a_failure_says_which_or_is_weak(engine, more, verdict, why):
    one = ran(engine, status="export_failed", error="'rope_type'", error_type="KeyError", failed_stage="export")
    for status in ("export_failed", ["ok", "export_failed"]):
        found = judged(engine, {"status": status, **more})
        assert (found["verdict"], found["why"]) == (verdict, why)
        assert found["weak"] == ([one] if verdict == "weakly verified" else [])
        assert found["errors"] == ["KeyError: 'rope_type'"]
    assert judged(engine, {"status": ["ok", "export_failed"], "above": 5, **more})["verdict"] == verdict
    assert judged(engine, {"status": ["ok", "load_failed"], **more})["verdict"] == "contradicted"


OF_THE_MOMENT = {
    "no space": {"status": "export_failed", "error_type": "DiskFull", "error": "no space left while writing export"},
    "SIGKILL": {"status": "killed", "signal": "SIGKILL", "error": "export was ended by SIGKILL"},
    "MemoryError": {"status": "export_failed", "error_type": "MemoryError", "error": "MemoryError"},
    "time-out": {"status": "timeout", "error": "export took longer than allowed and was ended"},
}


@pytest.mark.parametrize("cause", OF_THE_MOMENT)
def test_a_failure_of_the_moment_neither_verifies_nor_contradicts_a_claim(engine, cause):
    about = {**OF_THE_MOMENT[cause], "failed_stage": "export"}
    one = ran(engine, final=False, **about)
    for expect in (None, {"status": "export_failed"}, {"status": "export_failed", "error_type": "DiskFull"}):
        found = judged(engine, expect)
        assert (found["verdict"], found["unknown"]) == ("undecided", [one])
        assert about["error"] in found["why"]
    known = ran(engine, prompt())
    ran(engine, final=False, **about)
    found = judged(engine, {"identical": "all"})
    assert (found["verdict"], found["cells"], found["unknown"]) == ("verified", [known], [])


def test_an_end_that_is_no_exports_can_be_claimed_all_the_same(engine):
    ran(engine, status="patch_failed", final=False, error="no anchor", failed_stage="overlay")
    assert judged(engine, {"status": "patch_failed", "error_contains": "anchor"})["verdict"] == "verified"
    assert judged(engine)["verdict"] == "undecided"


def test_the_numbers_of_what_was_claimed_are_data(engine):
    ran(engine, prompt(2.0))
    ran(engine, prompt(5.0, identical=False), factors={"dtype": "bf16"})
    found = judged(engine)
    assert (found["multiples"], found["errors"]) == ([2.0, 5.0], [])
    assert found["identical"] == ["1 of 1, 3 tokens", "0 of 1, 3 tokens"]


@pytest.mark.parametrize(("status", "final"), [("env_failed", False), ("timeout", False), ("reference_failed", True)])
def test_a_failure_that_is_no_finding_decides_nothing(engine, status, final):
    ran(engine, status=status, final=final, error="no network")
    found = judged(engine)
    more = " (not the export's)" if final else ""
    assert (found["verdict"], found["why"]) == ("undecided", f"{status}: no network{more}")


def test_one_cell_against_contradicts_and_the_others_are_named(engine):
    good, bad = ran(engine, prompt()), ran(engine, prompt(identical=False), factors={"builder": "2"})
    found = judged(engine, {"identical": "all"}, builder=["1", "2"])
    assert (found["verdict"], found["builders"], found["cells"], found["held"]) == (
        "contradicted",
        ["2"],
        [bad],
        [good],
    )
    assert [one["holds"] for one in found["each"]] == [True, False]


def test_values_without_a_cell_leave_a_part_open(engine):
    ran(engine, prompt())
    found = judged(engine, None, builder=["1", "2"], patch=["v", "w"])
    assert (found["verdict"], found["missing"]) == ("partly verified", 3)


def test_a_match_on_nonsense_and_a_stand_in_are_told(engine):
    ran(engine, prompt(answer=False), stand_in="fake")
    found = judged(engine, {"identical": "all"})
    assert (found["verdict"], found["nonsense"], found["stand_ins"]) == ("verified", 1, ["fake"])


# The command line


def told(engine, *words: str):
    return CliRunner().invoke(items_cli.app, [*words, "--db", engine.url.database])


def test_the_command_line(engine, file):
    assert "items 1 (new states 1), claims 0" in told(engine, "load", str(file(items=[ITEM]))).output
    told(engine, "set", "#1", "--state", "Merged", "--date", "2026-11-11")
    words = ["--item", "#1", "--what", "w", "--filter", "builder=1", "--filter", "builder=2", "--filter", "patch=a=b"]
    expected = ["--expect", "at_most=10", "--expect", "verdict=near_tie", "--expect", "verdict=elevated"]
    assert told(engine, "claim", "c", *words, *expected).exit_code == 0
    (claim,) = items.claim_rows(engine)
    assert claim["filters"] == {"builder": ["1", "2"], "patch": ["a=b"]}
    assert claim["expect"] == {"status": ["ok"], "at_most": 10.0, "verdict": ["near_tie", "elevated"]}
    deep = ["--expect", "identical.from=1", "--expect", "identical.to=4", "--expect", "text.p.contains=Rome"]
    assert told(engine, "claim", "deep", "--what", "w", "--filter", "builder=1", *deep).exit_code == 0
    kept = {claim["name"]: claim["expect"] for claim in items.claim_rows(engine)}["deep"]
    assert kept == {"status": ["ok"], "identical": {"from": 1, "to": 4}, "text": {"p": {"contains": ["Rome"]}}}
    assert "text.p.contains=Rome" in told(engine, "list", "--claims").output
    assert told(engine, "claim", "c", "--what", "w", "--filter", "a=1", *deep, "--expect", "text=x").exit_code == 2
    assert [row["state"] for row in yaml.safe_load(told(engine, "list", "--format", "json").output)] == ["Merged"]
    assert "builder=1, 2" in told(engine, "list", "--claims").output
    states = yaml.safe_load(told(engine, "history", "#1", "--format", "json").output)
    assert [(state["state"], state["date"]) for state in states] == [("Open", "2026-11-01"), ("Merged", "2026-11-11")]
    assert isinstance(told(engine, "history", "#2").exception, query.NotInDatabase)
    assert told(engine, "claim", "c", "--what", "w", "--filter", "builder").exit_code == 2
