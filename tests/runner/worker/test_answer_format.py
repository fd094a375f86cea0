"""The formats of thinking and of channels: known where a checkpoint has them, and taken apart."""

from __future__ import annotations

import pytest
from answer_format import known, opening, parts


class Tokenizer:
    def __init__(self, *added: str, template: str | None = None, special: tuple[str, ...] = ()):
        self.added, self.chat_template, self.all_special_tokens = added, template, list(special)

    def get_added_vocab(self) -> dict[str, int]:
        return {token: n for n, token in enumerate(self.added)}


def of(*added: str, template: str | None = None, text: str = "hi") -> dict:
    return known(Tokenizer(*added), template, [{"name": "p", "text": text}])


def test_a_format_is_known_by_the_tokenizer_or_by_the_template():
    assert (
        of("<think>", "</think>")["pairs"] == of(template="a <think> b </think>")["pairs"] == [["<think>", "</think>"]]
    )
    assert known(Tokenizer(template="<think></think>"), None, [])["pairs"] == [["<think>", "</think>"]]
    assert of("<|channel|>", "<|message|>")["channels"] and not of("<|channel|>")["channels"]
    assert of("<|channel>", "<channel|>")["pairs"] == [["<|channel>", "<channel|>"]]


def test_half_a_format_or_none_is_none():
    none = {"channels": False, "pairs": [], "around": [], "special": [], "opening": {}}
    assert of() == of("<think>") == none
    assert parts("<think>a</think>b", none, "p") is None and parts("a", None, "p") is None


@pytest.mark.parametrize(
    ("added", "text", "opened"),
    [
        (("<think>", "</think>"), "<|im_start|>assistant\n<think>\n", "<think>"),
        (("<think>", "</think>"), "<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        (("<think>", "</think>"), "say <think> twice", ""),
        (("<|channel|>", "<|message|>"), "…<|start|>assistant", ""),
        (
            ("<|channel|>", "<|message|>"),
            "…<|start|>assistant<|channel|>final<|message|>",
            "<|channel|>final<|message|>",
        ),
    ],
)
def test_what_a_prompt_has_opened_is_where_the_continuation_begins(added, text, opened):
    form = of(*added, text=text)
    assert form["opening"].get("p", "") == opened == opening(form, text)


def test_a_continuation_in_an_opened_final_channel_is_the_answer():
    form = of("<|channel|>", "<|message|>", text="<|start|>assistant<|channel|>final<|message|>")
    assert parts("Paris.", form, "p").text == "Paris."


def test_thoughts_between_parts_of_an_answer_are_all_left_out():
    found = parts("<think>a</think>One.<think>b</think> Two.", of("<think>", "</think>"), "p")
    assert (found.text, found.thoughts, found.thinking) == ("One. Two.", ("a", "b"), False)


def test_what_stands_around_an_answer_is_no_part_of_it():
    form = of("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_THINKING|>", "<|END_THINKING|>")
    found = parts("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>Paris.<|END_RESPONSE|>", form, "p")
    assert (found.text, found.thoughts) == ("Paris.", ("a",))
