"""How an own way and wrong settings are told beside a verdict."""

from __future__ import annotations

import pytest

from runner import reservations


def own(outcome: str = "same", explained: bool = False, **more) -> dict:
    generation = {"prompt": "p", "why": "", "template_error": ""}
    return {"outcome": outcome, "says": "it does", "explained": explained, "generation": generation | more}


def setting(name: str, weight: str = "warning") -> dict:
    row = {"name": name, "reference": [1, 5], "export": 7, "verdict": "differs", "weight": weight, "says": "why"}
    (stored,) = reservations.settings_rows("k", [row])
    return stored


@pytest.mark.parametrize(
    ("way", "names", "said"),
    [
        (own(), [], []),
        (own("never_stops"), [], ["run its own way it does not stop"]),
        (own("never_stops", explained=True), [], []),
        (own("not_run"), [], []),
        (own("never_stops"), ["eos_token_id"], ["run its own way it does not stop"]),  # the cause is told below
        (own(), ["eos_token_id"], ["its eos_token_id is not the checkpoint's"]),
        (own("differs"), ["a", "b"], ["run its own way it gives another text", "its a and b are not the checkpoint's"]),
        (own(), ["a", "b", "c"], ["3 of its generation settings are wrong"]),
    ],
)
def test_phrases(way, names, said):
    rows = [setting(name) for name in names] + [setting("pad", "note")]
    assert reservations.reservations(way, rows) == said


def test_each_is_found_once():
    found = reservations.findings(own("never_stops"), [setting("eos_token_id"), setting("x", "note")], [])
    assert [(f["check"], f["prompt"]) for f in found] == [("generation_settings", None), ("own_way", None)]
    assert found[0]["evidence"] == "eos_token_id: 7 in the export, [1, 5] in the checkpoint: why"
    assert "prompt 'p'" in found[1]["evidence"] and found[1]["evidence"].endswith(": it does")
    known = [{"check": "runtime_tokenizer", "prompt": "p", "evidence": ""}]
    assert reservations.findings(own("other_ids"), [], known) == []
    assert len(reservations.findings(own("other_ids"), [], [])) == 1


def test_a_backend_without_a_loop_says_so():
    found = reservations.own_way({}, "tp_cpu")
    assert (
        found["outcome"] == "not_run" and found["says"] == "not run: backend tp_cpu has no generation loop of its own"
    )
    assert reservations.reservations(found, []) == [] and reservations.findings(found, [], []) == []


def test_what_a_library_says_is_scrubbed():
    secret = "hf_abcdefghijklmnop"
    found = reservations.own_way({"own_way": own("not_known", why=secret) | {"says": secret}}, "genai")
    assert secret not in str(found)
