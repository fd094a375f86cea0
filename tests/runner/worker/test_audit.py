"""What is odd about a prompt is found, with the reason, and a good prompt has nothing odd."""

from __future__ import annotations

import re

import pytest
from audit import (
    BOS,
    CHARACTERS,
    OUTSIDE,
    RUNTIME,
    SPLIT,
    SUSPECT,
    TEMPLATE,
    UNKNOWN,
    WRITTEN,
    adds_its_bos,
    findings,
    runtime_ids,
)

WORDS = ["what", "is", "the", "capital", "of", "france", "spelled", "letters", "plainly", "user", "model"]
MARKERS = ("<|turn>", "<turn|>")


class Tokenizer:
    """Words are tokens and so are its markers; other text is spelled, or unknown."""

    def __init__(self, markers=MARKERS, words=WORDS, bos="<bos>", unk="<unk>", adds_bos=True, spells=True):
        self.markers, self.adds_bos, self.spells = list(markers), adds_bos, spells
        specials = [special for special in (bos, unk) if special]
        self.vocabulary = [*specials, *self.markers, *words, *(chr(n) for n in range(32, 127)), "\n"]
        self.bos_token, self.unk_token, self.eos_token_id = bos, unk, None
        self.bos_token_id = self.vocabulary.index(bos) if bos else None
        self.unk_token_id = self.vocabulary.index(unk) if unk else None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict:
        whole = "|".join(map(re.escape, [*self.markers, *filter(None, [self.bos_token])]))
        ids = [self.bos_token_id] if add_special_tokens and self.adds_bos else []
        for piece in re.split(f"({whole})", text) if whole else [text]:
            for word in [piece] if piece in self.vocabulary else re.findall(r"\w+|[^\w ]", piece):
                ids += self.of_word(word)
        return {"input_ids": ids}

    def of_word(self, word: str) -> list[int]:
        for known in (word, word.lower()):
            if known in self.vocabulary:
                return [self.vocabulary.index(known)]
        if self.spells and all(letter in self.vocabulary for letter in word):
            return [self.vocabulary.index(letter) for letter in word]
        return [self.unk_token_id]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.vocabulary[i] for i in ids]

    def get_added_vocab(self) -> dict[str, int]:
        added = [token for token in (self.bos_token, self.unk_token, *self.markers) if token]
        return {token: self.vocabulary.index(token) for token in added}


GOOD = "What is the capital of France"


def prompt_of(tokenizer, user_text: str = GOOD, before="<bos><|turn>user\n", after="<turn|>\n<|turn>model\n", **more):
    text = before + user_text + after
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {"name": "p", "user_text": user_text, "text": text, "ids": ids} | more


def found(tokenizer, prompt: dict, vocabulary: int | None = 1000) -> dict[str, str]:
    result = findings(tokenizer, [prompt], vocabulary)
    assert all(set(finding) == {"prompt", "check", "evidence"} and finding["prompt"] == "p" for finding in result)
    return {finding["check"]: finding["evidence"] for finding in result}


def test_a_good_prompt_has_nothing_odd():
    tokenizer = Tokenizer()
    prompt = prompt_of(tokenizer)
    assert found(tokenizer, prompt) == found(tokenizer, prompt, None) == {}
    assert findings(tokenizer, [], 1000) == []


def test_each_prompt_has_its_own_findings():
    tokenizer = Tokenizer()
    good, bad = prompt_of(tokenizer), prompt_of(tokenizer, before="") | {"name": "bad"}
    assert [finding["prompt"] for finding in findings(tokenizer, [good, bad, good], 1000)] == ["bad"]


def test_unknown_tokens_are_counted_and_their_words_told():
    tokenizer = Tokenizer(spells=False)
    prompt = prompt_of(tokenizer, "What is mistletoe of ananas", before="<bos>", after="")
    assert found(tokenizer, prompt) == {UNKNOWN: "2 of 6 tokens are <unk> (1), in 'mistletoe', 'ananas'"}


def test_a_tokenizer_without_an_unknown_token_knows_all():
    tokenizer = Tokenizer(unk=None)
    assert found(tokenizer, prompt_of(tokenizer)) == {}


def test_markers_of_another_model_are_letters_to_this_one():
    tokenizer = Tokenizer()
    prompt = prompt_of(tokenizer, before="<bos><start_of_turn>user\n", after="<end_of_turn>\n<start_of_turn>model\n")
    (said,) = found(tokenizer, prompt).values()
    assert SPLIT in found(tokenizer, prompt)
    assert said.startswith(f"<start_of_turn> -> {[*'<start_of_turn>']}; the tokenizer's markers are <turn|>, <|turn>; ")
    assert said.count("<start_of_turn> ->") == said.count("<end_of_turn> ->") == 1


@pytest.mark.parametrize("marker", ["<|im_start|>", "<|turn>", "<turn|>", "<｜User｜>", "<start_of_turn>"])
def test_a_marker_is_split_unless_it_is_a_token(marker):
    letters = Tokenizer(markers=[], words=[*WORDS, "｜"])
    prompt = prompt_of(letters, before=f"<bos>{marker}", after="")
    ((check, evidence),) = found(letters, prompt).items()
    assert evidence.startswith(f"{marker} -> ['<', ") and "markers are" not in evidence
    # What the template writes and no token stands for is letters by the model's own format; what a user writes is not.
    assert check == TEMPLATE and TEMPLATE not in SUSPECT
    assert SPLIT in found(letters, prompt_of(letters, f"{marker}user", before="<bos>", after=""))
    assert SPLIT in found(letters, prompt | {"user_text": prompt["text"]})
    whole = Tokenizer(markers=[marker])
    assert found(whole, prompt_of(whole, before=f"<bos>{marker}", after="")) == {}


def test_a_marker_that_the_tokenizer_makes_a_token_is_one_whatever_it_puts_before_it():
    """A SentencePiece tokenizer puts a space before what it is given, before a marker by itself too."""

    class Spaced(Tokenizer):
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict:
            found = super().__call__(text, add_special_tokens)["input_ids"]
            return {"input_ids": [self.vocabulary.index(" "), *found] if not add_special_tokens else found}

    tokenizer = Spaced(markers=["<|user|>"])
    assert len(tokenizer("<|user|>", add_special_tokens=False)["input_ids"]) == 2
    text = "<bos><|user|>what is the capital"
    ids = Tokenizer(markers=["<|user|>"])(text, add_special_tokens=False)["input_ids"]
    prompt = {"name": "p", "user_text": "what is the capital", "text": text, "ids": ids}
    assert found(tokenizer, prompt) == {}
    spelled = [*ids[:1], *(tokenizer.vocabulary.index(letter) for letter in "<|user|>"), *ids[2:]]
    assert SPLIT in found(tokenizer, prompt | {"ids": spelled})  # the token is there, and the prompt has its letters


def test_a_tokenizer_whose_special_tokens_are_of_no_turn_has_turns_that_are_letters():
    tokenizer = Tokenizer(markers=["<|endoftext|>", "<|padding|>"])
    assert found(tokenizer, prompt_of(tokenizer, before="<bos><|user|>", after="")).keys() == {TEMPLATE}


def test_text_in_angle_brackets_is_no_marker():
    tokenizer = Tokenizer()
    assert found(tokenizer, prompt_of(tokenizer, "What is <the> capital of France or a < b | c > d")) == {}


def test_a_bos_put_twice():
    tokenizer = Tokenizer()
    prompt = prompt_of(tokenizer, before="<bos><bos><|turn>user\n")
    assert found(tokenizer, prompt) == {BOS: "<bos> (id 0) stands 2 times, at [0, 1]: the ids begin [0, 0, 2]"}


def test_a_bos_that_the_tokenizer_would_put_is_missed():
    tokenizer = Tokenizer()
    assert adds_its_bos(tokenizer)
    prompt = prompt_of(tokenizer, before="<|turn>user\n")
    evidence = f"no <bos> (id 0) at the start, which the tokenizer itself would put: the ids begin {prompt['ids'][:4]}"
    assert found(tokenizer, prompt) == {BOS: evidence}


@pytest.mark.parametrize("more", [{"adds_bos": False}, {"bos": None, "adds_bos": False}])
def test_a_bos_that_the_tokenizer_would_not_put_is_not_missed(more):
    tokenizer = Tokenizer(**more)
    assert not adds_its_bos(tokenizer)
    assert found(tokenizer, prompt_of(tokenizer, before="<|turn>user\n")) == {}


def test_a_bos_put_by_the_template_alone_is_right():
    tokenizer = Tokenizer(adds_bos=False)
    assert found(tokenizer, prompt_of(tokenizer)) == {}


def test_a_bos_later_on_is_one_too_many():
    tokenizer = Tokenizer(adds_bos=False)
    assert found(tokenizer, prompt_of(tokenizer, "what <bos> is", before="<|turn>")) == {}
    prompt = prompt_of(tokenizer, "what <bos> is")
    ids = prompt["ids"][:7]
    assert found(tokenizer, prompt) == {BOS: f"<bos> (id 0) stands 2 times, at [0, 5]: the ids begin {ids}"}


def test_a_bos_that_begins_turns_may_stand_before_each():
    tokenizer = Tokenizer(markers=["<|im_start|>", "<|im_end|>"], bos="<|im_start|>", adds_bos=False)
    prompt = prompt_of(tokenizer, before="<|im_start|>system\n<|im_end|>\n<|im_start|>user\n", after="<|im_end|>\n")
    assert BOS not in found(tokenizer, prompt)
    prompt = prompt_of(tokenizer, before="<|im_start|><|im_start|>user\n", after="<|im_end|>\n")
    assert found(tokenizer, prompt)[BOS].startswith("<|im_start|> (id ")


def test_a_bos_that_is_there_but_not_first_is_missed():
    tokenizer = Tokenizer()
    assert found(tokenizer, prompt_of(tokenizer, before="<|turn><bos>")).keys() == {BOS}


def test_markers_in_the_users_own_text_are_a_turn_inside_a_turn():
    tokenizer = Tokenizer()
    evidence = "the prompt's own text has <|turn>, [INST], and the template writes the turns"
    text = "<|turn>what [INST] is <|turn>the capital"
    assert found(tokenizer, prompt_of(tokenizer, text)) == {WRITTEN: evidence}
    alone = prompt_of(tokenizer, "<bos>" + text, before="", after="")
    assert found(tokenizer, alone) == {}


def test_one_token_a_character():
    tokenizer = Tokenizer(words=["user", "model"])
    text = "thequickbrownfoxjumpsoverthelazydog"
    evidence = f"35 tokens for 35 characters: {[*'thequick']} …; a trained tokenizer needs about a quarter"
    assert found(tokenizer, prompt_of(tokenizer, text)) == {CHARACTERS: evidence}


@pytest.mark.parametrize("text", ["", "short", "机器学习的中文是什么" * 4, GOOD])
def test_text_that_may_be_a_token_a_character(text):
    tokenizer = Tokenizer(words=[*WORDS, *"机器学习的中文是什么"])
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) in (len(text), 6)
    assert found(tokenizer, prompt_of(tokenizer, text)) == {}


def test_ids_outside_the_vocabulary():
    tokenizer = Tokenizer()
    prompt = prompt_of(tokenizer) | {"ids": [0, 9, 10, 11, 12, 10, -1, 13, 14, 15]}
    assert found(tokenizer, prompt, 10) == {
        OUTSIDE: "ids [-1, 10, 11, 12, 13] are outside the model's vocabulary of 10"
    }
    assert found(tokenizer, prompt_of(tokenizer) | {"ids": [0, 9]}, 10) == {}
    assert found(tokenizer, prompt, None) == {}


def test_what_makes_a_prompt_suspect():
    assert set(SUSPECT) == {UNKNOWN, SPLIT, OUTSIDE}


def runtime(ids) -> list[dict]:
    """What is found where the runtime encodes a prompt of ids 1 2 3 4 as `ids`."""

    def encode(text):
        assert text == "t"
        if isinstance(ids, Exception):
            raise ids
        return ids

    return runtime_ids(encode, [{"name": "p", "user_text": "u", "text": "t", "ids": [1, 2, 3, 4]}])


def test_a_runtime_that_agrees_and_one_that_there_is_not():
    assert runtime([1, 2, 3, 4]) == []
    assert runtime_ids(None, [{"name": "p", "user_text": "u", "text": "t", "ids": [1]}]) == []


@pytest.mark.parametrize(
    ("ids", "at", "theirs", "ours"),
    [
        ([1, 9, 3, 4], 1, "[9, 3, 4] (4 in all)", "[2, 3, 4]"),
        ([0, 1, 2, 3, 4], 0, "[0, 1, 2, 3] (5 in all)", "[1, 2, 3, 4]"),
        ([1, 2], 2, "[] (2 in all)", "[3, 4]"),
        ([1, 2, 3, 4, 5], 4, "[5] (5 in all)", "[]"),
        ([], 0, "[] (0 in all)", "[1, 2, 3, 4]"),
    ],
)
def test_a_runtime_that_differs(ids, at, theirs, ours):
    (finding,) = runtime(ids)
    assert (finding["prompt"], finding["check"]) == ("p", RUNTIME)
    assert finding["evidence"] == (
        f"from token {at} on the runtime's own has {theirs}, transformers' {ours} (4 in all);"
        " both sides were given the latter"
    )


def test_a_runtime_that_raises_is_told_of_and_the_next_prompt_is_asked():
    assert runtime(ValueError("no such token")) == [
        {"prompt": "p", "check": RUNTIME, "evidence": "ValueError: no such token"}
    ]
    asked = []
    prompts = [{"name": name, "user_text": name, "text": name, "ids": [1]} for name in "ab"]

    def encode(text):
        asked.append(text)
        raise RuntimeError

    assert len(runtime_ids(encode, prompts)) == 2 and asked == ["a", "b"]


def test_the_runtime_is_not_asked_about_prompts_made_of_ids():
    assert runtime_ids(pytest.fail, [{"name": "window", "user_text": "", "text": "t", "ids": [1]}]) == []
