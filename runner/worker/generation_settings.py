"""What an export tells its runtime about generating, beside what the checkpoint asks for.

The comparison of logits neutralises all of it, so a fault here shows in no
number: an end token that is wrong, and the export never stops. Read from the
files of two folders; nothing is loaded. `compare` gives a row a setting.

A row is a warning where a user of the export gets something else than a user of
the checkpoint: end tokens, BOS, pad, context, what chooses tokens, the chat
template, the vocabulary. It is a note where the builder writes its own by
design, or where the files differ and nothing is known to follow from it.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from typing import Any

import chat_templates
import neutral

SAME, DIFFERS, MISSING, ADDED, UNCOMPARED = (
    "same", "differs", "missing in the export", "only in the export", "not compared",
)  # fmt: skip
WARNING, NOTE = "warning", "note"

# What `search` in genai_config.json says of choosing tokens, with transformers' value where a checkpoint says nothing.
CHOOSING = {
    "do_sample": False, "min_length": 0, "no_repeat_ngram_size": 0, "num_beams": 1, "repetition_penalty": 1.0,
}  # fmt: skip
SAMPLING = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}  # only where tokens are sampled
BEAMS = {"diversity_penalty": 0.0, "early_stopping": False, "length_penalty": 1.0, "num_return_sequences": 1}
# What the runtime has no option for: a checkpoint that asks for one of these gets it from transformers alone.
UNKNOWN_TO_RUNTIME = tuple(name for name in neutral.NEUTRAL if name not in neutral.SEARCH)
# What the builder writes by design.
BY_DESIGN = {
    "model_max_length": "the builder writes the context length",
    "max_length": "the builder writes the context length; transformers' default is 20",
}
# Options that only the runtime has.
RUNTIMES = {
    "past_present_share_buffer": "whether the cache is one buffer of max_length; transformers has no such option"
}
# Tokens of tokenizer_config.json that decide where a text begins and ends.
ENDS = ("bos_token", "eos_token")
SHOWN_PARTS = 6  # of a file that differs


@dataclass(frozen=True)
class Setting:
    """One setting on both sides. reference, export: JSON values, None where a side has none; says: why, in words."""

    name: str
    reference: Any
    export: Any
    verdict: str
    weight: str = NOTE
    says: str = ""

    @property
    def wrong(self) -> bool:
        return self.weight == WARNING


def compared(checkpoint: str, export: str) -> list[dict]:
    """`compare`, which must not fail a cell: files that cannot be read are one row that says so."""
    try:
        return compare(checkpoint, export)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        return [asdict(Setting("files", None, None, UNCOMPARED, NOTE, f"not known: {type(error).__name__}: {error}"))]


def compare(checkpoint: str, export: str) -> list[dict]:
    """Every setting of a checkpoint's folder beside those of its export's, as `Setting`'s fields.

    Errors: OSError or ValueError where a file cannot be read.
    """
    config, asked = read(checkpoint, "config.json"), read(checkpoint, "generation_config.json")
    runtime = read(export, "genai_config.json")
    model, search = runtime.get("model") or {}, runtime.get("search") or {}
    text = config | (config.get("text_config") or {})
    rows = [
        end_tokens(checkpoint, config, asked, model),
        token("bos_token_id", text, asked, model, "the builder writes one where the checkpoint names none"),
        token("pad_token_id", text, asked, model, "the builder takes an end token where the checkpoint names none"),
        context_length(text, model),
        *searched(config, asked, search),
        *unknown_to_runtime(config, asked),
        template(checkpoint, export),
        *tokenizer_files(checkpoint, export),
    ]
    return [asdict(row) for row in rows]


def read(folder: str, name: str) -> dict:
    """A JSON file's object; empty where there is no such file."""
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file) or {}


def ids(value: Any) -> list[int]:
    """End tokens as a config has them: one, a list, or none."""
    return sorted({value} if isinstance(value, int) else set(value or ()))


def end_tokens(checkpoint: str, config: dict, asked: dict, model: dict) -> Setting:
    """Those of generation_config.json, or where it names none of config.json, beside the export's.

    The tokenizer's own end token, and config.json's, are no fault beside them:
    the builder adds them by design.
    """
    text = config.get("text_config") or {}
    named = ids(config.get("eos_token_id")) or ids(text.get("eos_token_id"))
    wanted, theirs = ids(asked.get("eos_token_id")) or named, ids(model.get("eos_token_id"))
    if not wanted:
        if not theirs:
            return Setting("eos_token_id", None, None, SAME)
        return Setting("eos_token_id", None, theirs, ADDED, NOTE, "the checkpoint's configs name none")
    if not theirs:
        return Setting("eos_token_id", wanted, None, MISSING, WARNING, "nothing stops the export")
    lost, more = (sorted(set(a) - set(b)) for a, b in ((wanted, theirs), (theirs, wanted)))
    if not lost and not more:
        return Setting("eos_token_id", wanted, theirs, SAME)
    said = [f"the export does not stop at {listed(lost)}"] if lost else []
    said += [f"it stops at {listed(more)} too"] if more else []
    known = {*named, *ids(text.get("eos_token_id")), *ids(tokenizer_end(checkpoint))}
    if lost or not set(more) <= known:
        return Setting("eos_token_id", wanted, theirs, DIFFERS, WARNING, ", and ".join(said))
    design = "config.json's or the tokenizer's own, which the builder adds"
    return Setting("eos_token_id", wanted, theirs, DIFFERS, NOTE, f"{said[0]}: {design}")


def tokenizer_end(checkpoint: str) -> int | None:
    """The id of the tokenizer's own end token, by its files."""
    named = content(read(checkpoint, chat_templates.CONFIG), "eos_token")
    return vocabulary(read(checkpoint, "tokenizer.json")).get(named) if named else None


def token(name: str, config: dict, asked: dict, model: dict, design: str) -> Setting:
    """One special token's id; design: why the export may have one where the checkpoint has none."""
    given = asked.get(name)
    wanted, theirs = config.get(name) if given is None else given, model.get(name)
    if wanted is None:
        return Setting(name, None, theirs, SAME if theirs is None else ADDED, NOTE, "" if theirs is None else design)
    if theirs is None:
        return Setting(name, wanted, None, MISSING, WARNING)
    if wanted == theirs:
        return Setting(name, wanted, theirs, SAME)
    return Setting(name, wanted, theirs, DIFFERS, WARNING)


def context_length(config: dict, model: dict) -> Setting:
    """For how many positions each side says that it can be used."""
    name, theirs = "context_length", model.get("context_length")
    wanted = next((config[key] for key in ("seq_length", "max_position_embeddings") if config.get(key)), None)
    if wanted is None:
        return Setting(name, None, theirs, UNCOMPARED, NOTE, "config.json has no max_position_embeddings")
    if theirs is None:
        return Setting(name, wanted, None, MISSING, WARNING)
    if theirs == wanted:
        return Setting(name, wanted, theirs, SAME)
    how = "the export is cut short" if theirs < wanted else "beyond the positions of the checkpoint"
    return Setting(name, wanted, theirs, DIFFERS, WARNING, how)


def searched(config: dict, asked: dict, search: dict) -> list[Setting]:
    """What is under `search` beside what the checkpoint asks for; where it asks for nothing, transformers' default."""

    def wanted(name: str, default: Any) -> Any:
        return next((side[name] for side in (asked, config) if side.get(name) is not None), default)

    sampled = bool(wanted("do_sample", False) or search.get("do_sample"))
    beams = max(wanted("num_beams", 1), search.get("num_beams") or 1) > 1
    rows = [option(name, wanted(name, default), search, default, True) for name, default in CHOOSING.items()]
    rows += [option(name, wanted(name, default), search, default, sampled) for name, default in SAMPLING.items()]
    rows += [option(name, wanted(name, default), search, default, beams) for name, default in BEAMS.items()]
    limit = asked.get("max_length", 20)
    alike = SAME if search.get("max_length") == limit else DIFFERS
    rows.append(Setting("max_length", limit, search.get("max_length"), alike, NOTE, BY_DESIGN["max_length"]))
    known = {*CHOOSING, *SAMPLING, *BEAMS, "max_length"}
    rows += [
        Setting(name, None, value, ADDED, NOTE, RUNTIMES.get(name, "an option of the runtime's alone"))
        for name, value in sorted(search.items())
        if name not in known
    ]
    return rows


def option(name: str, wanted: Any, search: dict, default: Any, counts: bool) -> Setting:
    """One option of choosing tokens. counts: whether it takes part at all, as both sides are set."""
    idle = "" if counts else "takes no part as both sides are set"
    if name not in search:
        if wanted == default:
            return Setting(name, wanted, None, SAME, NOTE, "the runtime's default")
        return Setting(name, wanted, None, MISSING, WARNING if counts else NOTE, idle)
    if search[name] == wanted:
        return Setting(name, wanted, search[name], SAME)
    return Setting(name, wanted, search[name], DIFFERS, WARNING if counts else NOTE, idle)


def unknown_to_runtime(config: dict, asked: dict) -> list[Setting]:
    """What a checkpoint asks for and the runtime has no option for."""
    given = neutral.overridden(config | asked)
    return [
        Setting(name, given[name], None, MISSING, WARNING, "the runtime has no such option: transformers alone does it")
        for name in UNKNOWN_TO_RUNTIME
        if name in given
    ]


def template(checkpoint: str, export: str) -> Setting:
    """The chat template of each side, wherever it stands in its folder."""
    (ours, where), (theirs, there) = chat_templates.in_folder(checkpoint), chat_templates.in_folder(export)
    values = ("chat_template", digest(ours), digest(theirs))
    if not ours:
        return Setting(*values, ADDED if theirs else SAME, WARNING if theirs else NOTE)
    if not theirs:
        return Setting(*values, MISSING, WARNING, f"the checkpoint has one in {where}")
    if ours == theirs:
        return Setting(*values, SAME, NOTE, "" if where == there else f"{where} in one, {there} in the other")
    if ours.strip() == theirs.strip():
        return Setting(*values, DIFFERS, NOTE, "in white space at its ends alone")
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    one, two = (repr(side[at : at + 30]) for side in (ours, theirs))
    return Setting(*values, DIFFERS, WARNING, f"from character {at} on {two}, in the checkpoint's {one}")


def digest(text: str | None) -> str | None:
    """A long text in a few characters that are another's only where the texts are the same."""
    return f"{len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}" if text else None


def tokenizer_files(checkpoint: str, export: str) -> list[Setting]:
    """The vocabulary, which must be the same, and the files, which saving writes anew."""
    ours, theirs = (read(folder, "tokenizer.json") for folder in (checkpoint, export))
    if not ours:
        why = "the checkpoint has no tokenizer.json; the ids that both give are compared by the prompts"
        rows = [Setting("vocabulary", None, None, UNCOMPARED, NOTE, why)]
    elif not theirs:
        rows = [Setting("vocabulary", "tokenizer.json", None, MISSING, WARNING, "the export has no tokenizer.json")]
    else:
        rows = [
            same_vocabulary(vocabulary(ours), vocabulary(theirs)),
            file_row("tokenizer.json", plain(ours), plain(theirs)),
        ]
    for name in (chat_templates.CONFIG, "special_tokens_map.json"):
        one, two = read(checkpoint, name), read(export, name)
        one, two = ({k: v for k, v in side.items() if k != "chat_template"} for side in (one, two))
        rows.append(file_row(name, one, two))
    return rows


def same_vocabulary(ours: dict[str, int], theirs: dict[str, int]) -> Setting:
    """Whether every token has the same id on both sides."""
    odd = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if not odd:
        return Setting("vocabulary", f"{len(ours)} tokens", f"{len(theirs)} tokens", SAME)
    told = ", ".join(f"{name!r} is {ours.get(name)} and {theirs.get(name)}" for name in odd[:3])
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return Setting(
        "vocabulary", f"{len(ours)} tokens", f"{len(theirs)} tokens", DIFFERS, WARNING, f"of the export's: {told}{more}"
    )


def vocabulary(tokenizer: dict) -> dict[str, int]:
    """Each token's id, by a tokenizer.json's content; empty where its model lists none by name."""
    listed = (tokenizer.get("model") or {}).get("vocab") or {}
    if isinstance(listed, list):  # Unigram: [[piece, score], …], by place
        listed = {entry[0]: place for place, entry in enumerate(listed)}
    return {**listed, **{added["content"]: added["id"] for added in tokenizer.get("added_tokens") or ()}}


def plain(tokenizer: dict) -> dict:
    """A tokenizer.json's content in one form: merges are pairs, or one string with a blank in older files."""
    model = dict(tokenizer.get("model") or {})
    if model.get("merges"):
        model["merges"] = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]
    return {**tokenizer, "model": model}


def file_row(name: str, ours: dict, theirs: dict) -> Setting:
    """A JSON file of each side, by which of its parts differ."""
    if ours == theirs:
        return Setting(name, bool(ours) or None, bool(theirs) or None, SAME, NOTE, "" if ours else "neither has one")
    if not ours or not theirs:
        why = "transformers writes it or not, by its version"
        return Setting(name, bool(ours) or None, bool(theirs) or None, MISSING if ours else ADDED, NOTE, why)
    if odd := [key for key in ENDS if other(ours, theirs, key)]:
        said = ", ".join(f"{key} is {content(theirs, key)!r} and not {content(ours, key)!r}" for key in odd)
        return Setting(name, True, True, DIFFERS, WARNING, said)
    parts = different_parts(ours, theirs)
    more = f" and {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    says = f"in {', '.join(parts[:SHOWN_PARTS])}{more}"
    if "model_max_length" in parts:
        says += f" (model_max_length: {BY_DESIGN['model_max_length']})"
    return Setting(name, True, True, DIFFERS, NOTE, f"{says}; whether ids differ, the prompts say")


def content(config: dict, key: str) -> str | None:
    """A special token as a tokenizer's config has it: a text, or an object with one."""
    found = config.get(key)
    return found.get("content") if isinstance(found, dict) else found


def other(ours: dict, theirs: dict, key: str) -> bool:
    """Whether both configs name a special token, and not the same one."""
    one, two = content(ours, key), content(theirs, key)
    return None not in (one, two) and one != two


def different_parts(ours: dict, theirs: dict, before: str = "", depth: int = 2) -> list[str]:
    """The paths at which two objects differ, to a depth."""
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        one, two = ours.get(key), theirs.get(key)
        if one == two and (key in ours) == (key in theirs):
            continue
        path = f"{before}{key}"
        if depth > 1 and isinstance(one, dict) and isinstance(two, dict):
            found += different_parts(one, two, f"{path}.", depth - 1)
        else:
            found.append(path)
    return found


def listed(values: list[int]) -> str:
    return ", ".join(map(str, values))
