"""An export's generation settings beside the checkpoint's: what is a fault, and what the builder writes by design."""

from __future__ import annotations

import json

import pytest
from generation_settings import SAME, WARNING, compare, compared
from hypothesis import given, settings
from hypothesis import strategies as st

TEMPLATE = "{{ bos_token }}{{ messages[0]['content'] }}"
TOKENIZER = {
    "added_tokens": [{"id": 1, "content": "<eos>"}, {"id": 2, "content": "<bos>"}],
    "model": {"type": "BPE", "vocab": {"a": 3, "b": 4, "ab": 5}, "merges": ["a b"]},
}
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


@pytest.fixture
def sides(tmp_path):
    """Two folders that say the same, and `put(side, file, content)` that changes one of their files."""

    class Sides:
        def put(self, side: str, name: str, content) -> None:
            folder = tmp_path / side
            folder.mkdir(exist_ok=True)
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text, encoding="utf-8")

        def rows(self) -> dict[str, dict]:
            return {row["name"]: row for row in compare(str(tmp_path / "checkpoint"), str(tmp_path / "export"))}

        def wrong(self) -> list[str]:
            return [name for name, row in self.rows().items() if row["weight"] == WARNING]

        def runtime(self, model=(), search=()) -> None:
            own = {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0, "context_length": 64} | dict(model)
            options = {"do_sample": False, "early_stopping": True, "max_length": 64, "past_present_share_buffer": True}
            options |= {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0} | dict(search)
            self.put("export", "genai_config.json", {"model": own, "search": options})

        def asked(self, **more) -> None:
            own = {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0}
            self.put("checkpoint", "generation_config.json", own | more)

        def config(self, **more) -> None:
            self.put("checkpoint", "config.json", {"max_position_embeddings": 64, "eos_token_id": 1} | more)

    found = Sides()
    found.config()
    found.asked()
    found.runtime()
    for side in ("checkpoint", "export"):
        found.put(side, "tokenizer.json", TOKENIZER)
    found.put("checkpoint", "tokenizer_config.json", TOKENS | {"chat_template": TEMPLATE})
    found.put("export", "tokenizer_config.json", TOKENS | {"model_max_length": 64})
    found.put("export", "chat_template.jinja", TEMPLATE)
    return found


def test_a_right_export_has_nothing_wrong(sides):
    assert sides.wrong() == []
    rows = sides.rows()
    assert rows["chat_template"]["verdict"] == SAME and rows["eos_token_id"]["export"] == [1, 5]
    assert "the builder writes the context length" in rows["max_length"]["says"]
    assert rows["past_present_share_buffer"]["verdict"] == "only in the export"
    assert "model_max_length" in rows["tokenizer_config.json"]["says"]


@pytest.mark.parametrize(
    ("theirs", "wrong", "says"),
    [
        ([5, 1], False, ""),  # the order is no matter
        (7, True, "the export does not stop at 1, 5, and it stops at 7 too"),
        (1, True, "the export does not stop at 5"),
        ([1, 5, 9], True, "it stops at 9 too"),
        (None, True, "nothing stops the export"),
        ([], True, "nothing stops the export"),
    ],
)
def test_end_tokens(sides, theirs, wrong, says):
    sides.runtime({"eos_token_id": theirs})
    row = sides.rows()["eos_token_id"]
    assert (row["weight"] == WARNING, row["says"]) == (wrong, says)


def test_an_end_token_that_the_builder_takes_from_the_tokenizer_is_by_design(sides):
    sides.asked(eos_token_id=5)
    row = sides.rows()["eos_token_id"]
    assert row["verdict"] == "differs" and row["weight"] != WARNING and "which the builder adds" in row["says"]


def test_end_tokens_of_a_text_config(sides):
    sides.put("checkpoint", "generation_config.json", {})
    sides.put("checkpoint", "config.json", {"text_config": {"eos_token_id": [1, 5], "max_position_embeddings": 64}})
    rows = sides.rows()
    assert (rows["eos_token_id"]["verdict"], rows["context_length"]["verdict"]) == (SAME, SAME)


@pytest.mark.parametrize(
    ("model", "search", "wrong"),
    [
        ({"bos_token_id": 9}, {}, "bos_token_id"),
        ({"pad_token_id": 9}, {}, "pad_token_id"),
        ({"context_length": 32}, {}, "context_length"),
        ({"context_length": 128}, {}, "context_length"),
        ({}, {"repetition_penalty": 1.3}, "repetition_penalty"),
        ({}, {"num_beams": 4, "early_stopping": False}, "num_beams"),
        ({}, {"min_length": 5}, "min_length"),
        ({}, {"do_sample": True}, "do_sample"),
    ],
)
def test_each_setting_that_is_wrong_is_the_one_named(sides, model, search, wrong):
    sides.runtime(model, search)
    assert sides.wrong() == [wrong]


def test_how_tokens_are_sampled_counts_where_they_are(sides):
    sides.runtime(search={"top_k": 7})
    assert sides.wrong() == [] and "takes no part" in sides.rows()["top_k"]["says"]
    sides.asked(do_sample=True, top_k=40)
    sides.runtime(search={"do_sample": True, "top_k": 7})
    assert sides.wrong() == ["top_k"]


def test_what_a_checkpoint_asks_for_and_the_export_does_not_carry(sides):
    sides.asked(repetition_penalty=1.1, suppress_tokens=[3])
    assert sides.wrong() == ["repetition_penalty", "suppress_tokens"]
    assert "no such option" in sides.rows()["suppress_tokens"]["says"]


def test_what_a_checkpoint_does_not_name_is_no_fault_of_the_export(sides):
    sides.put("checkpoint", "generation_config.json", {"eos_token_id": [1, 5]})
    sides.put("checkpoint", "config.json", {})
    assert sides.wrong() == []
    rows = sides.rows()
    assert rows["context_length"]["verdict"] == "not compared"
    assert rows["pad_token_id"]["verdict"] == "only in the export"


@pytest.mark.parametrize(
    ("theirs", "verdict", "wrong"),
    [
        (TEMPLATE + "\n", "differs", False),
        (TEMPLATE.replace("content", "text"), "differs", True),
        ("", "missing in the export", True),
    ],
)
def test_chat_templates(sides, theirs, verdict, wrong):
    sides.put("export", "chat_template.jinja", theirs)
    row = sides.rows()["chat_template"]
    assert (row["verdict"], row["weight"] == WARNING) == (verdict, wrong)


def test_a_vocabulary_is_compared_by_its_tokens_and_a_file_by_its_content(sides):
    again = {**TOKENIZER, "model": {**TOKENIZER["model"], "merges": [["a", "b"]]}, "padding": None}
    sides.put("export", "tokenizer.json", again)
    assert sides.wrong() == [] and "padding" in sides.rows()["tokenizer.json"]["says"]
    moved = {**TOKENIZER, "model": {**TOKENIZER["model"], "vocab": {"a": 4, "b": 3, "ab": 5}}}
    sides.put("export", "tokenizer.json", moved)
    assert sides.wrong() == ["vocabulary"] and "'a' is 3 and 4" in sides.rows()["vocabulary"]["says"]


def test_an_end_token_of_another_name(sides):
    sides.put("export", "tokenizer_config.json", TOKENS | {"eos_token": {"content": "<end>"}})
    assert sides.wrong() == ["tokenizer_config.json"]


def test_files_that_cannot_be_read_are_told(sides, tmp_path):
    sides.put("export", "genai_config.json", "{")
    (row,) = compared(str(tmp_path / "checkpoint"), str(tmp_path / "export"))
    assert row["verdict"] == "not compared" and row["weight"] != WARNING and "JSONDecodeError" in row["says"]


VALUES = st.one_of(st.none(), st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3))
SETTINGS = st.fixed_dictionaries(
    {"eos_token_id": VALUES},
    optional={
        "do_sample": st.booleans(), "num_beams": st.integers(1, 3), "repetition_penalty": st.sampled_from([1.0, 1.2]),
        "top_k": st.integers(1, 60), "min_length": st.integers(0, 3), "no_repeat_ngram_size": st.integers(0, 3),
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(asked=SETTINGS)
def test_an_export_that_says_what_the_checkpoint_says_is_right_whatever_that_is(tmp_path_factory, asked):
    folder = tmp_path_factory.mktemp("sides")
    for side, name, content in (
        ("checkpoint", "generation_config.json", asked),
        ("export", "genai_config.json", {"model": {"eos_token_id": asked["eos_token_id"]}, "search": asked}),
    ):
        (folder / side).mkdir()
        (folder / side / name).write_text(json.dumps(content), encoding="utf-8")
    rows = compare(str(folder / "checkpoint"), str(folder / "export"))
    assert [row for row in rows if row["weight"] == WARNING] == []


@settings(max_examples=60, deadline=None)
@given(ours=VALUES, theirs=VALUES)
def test_end_tokens_are_wrong_when_one_of_the_checkpoints_is_lost(tmp_path_factory, ours, theirs):
    folder = tmp_path_factory.mktemp("sides")
    for side, name, content in (
        ("checkpoint", "generation_config.json", {"eos_token_id": ours}),
        ("export", "genai_config.json", {"model": {"eos_token_id": theirs}}),
    ):
        (folder / side).mkdir()
        (folder / side / name).write_text(json.dumps(content), encoding="utf-8")
    row = next(r for r in compare(str(folder / "checkpoint"), str(folder / "export")) if r["name"] == "eos_token_id")
    one, two = ({side} if isinstance(side, int) else set(side or ()) for side in (ours, theirs))
    assert (row["weight"] == WARNING) == (bool(one) and one != two)
