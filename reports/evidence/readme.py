"""README.md of the folder: what is claimed and found, how it was measured, and how to make it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from db.output import markdown_code, markdown_text
from reports import status
from reports.evidence.steps import Step
from reports.table import cells


def head(judged: Mapping[str, Any], item: Mapping[str, Any] | None) -> str:
    about = f"{status.linked(item)}: {markdown_text(item['what'])}: {status.dated(item)}.\n\n" if item else ""
    name, what = (markdown_text(judged[key]) for key in ("name", "what"))
    return f"# {name}\n\n{about}Claimed: {what}.\n\nFound: {status.says(judged)}."


def measured(facts: Sequence[Mapping[str, Any]]) -> str:
    """How, in five lines."""
    row, config = facts[0]["row"], facts[0]["config"]
    reference = config.get("reference", {})
    versions = {
        name: ", ".join(
            sorted({made["packages"].get(name, "?") for f in facts if (made := f["environments"].get(role))})
        )
        or "?"
        for name, role in (("transformers", "reference"), ("onnxruntime-genai", "runtime"))
    }
    return "\n".join([
        "## How it was measured", "",
        "1. Both sides are given the same token ids (`prompts.json`), made once by the checkpoint's own tokenizer.",
        f"2. Reference: the checkpoint in transformers {versions['transformers']},"
        f" {reference.get('compute_dtype', 'float32')}, {reference.get('attention', 'eager')} attention."
        f" {candidates(facts, versions['onnxruntime-genai'])} Threads: {row['threads']}.",
        f"3. Greedy over the raw logits, up to {row['max_new_tokens']} new tokens; nothing of a generation config.",
        "4. The largest absolute difference of logits: at the first token, at each step while the texts agree, and at"
        " each step when both are fed the reference's tokens (forced).",
        "5. Noise floor: how far the reference moves when computed otherwise (fp64, other attention, other threads, one"
        " pass); verdicts are by multiples of it. Identical: the same tokens, the end token included, and how many"
        " tokens were compared. Cut: the limit came before a text's end, and its answer is not known.",
        "6. Beside all this, one generation as a user runs it: the runtime's own tokenizer, chat template, loop and end"
        " tokens.",
    ])  # fmt: skip


def candidates(facts: Sequence[Mapping[str, Any]], runtime: str) -> str:
    """What the candidates were computed by: a sentence for exports, and one for each backend without."""
    rows = [fact["row"] for fact in facts]
    said = [f"Export: on ONNX Runtime GenAI {runtime}."] * any(row["builder"] != "none" for row in rows)
    own = dict.fromkeys((row["backend"], row["source"]) for row in rows if row["builder"] == "none")
    return " ".join([*said, *(f"Backend {backend}: {source}." for backend, source in own)])


def found(shown: str, judged: Mapping[str, Any]) -> str:
    words = {True: "as claimed", False: "not as claimed", None: "cannot say"}
    each = [
        f"- Cell {o['cell']}: {'not known' if o['cell'] in judged['unknown'] else words[o['holds']]}"
        f"{': ' * bool(o['why'])}{markdown_text(o['why'])}."
        for o in judged["each"]
    ]
    return "\n".join(["## What was found", "", shown, *each])


def patches(facts: Sequence[Mapping[str, Any]], main: Mapping[int, Mapping[str, Any]], altered: Sequence[str]) -> str:
    """Which file is which patch: against the release it was measured on, and against main where that is known."""
    each = []
    for fact in facts:
        row, cell = fact["row"], fact["row"]["cell"]
        if row["builder"] == "none" or row["patch"] == "none":
            continue
        if fact["diff"]:
            each.append(f"- `cell-{cell}.patch.diff`: {row['patch']} against {fact['against']}.")
        elif fact["diff_lost"]:
            each.append(f"- Cell {cell}: what {row['patch']} changes in {fact['against']} is not kept as a difference.")
        else:
            each.append(f"- Cell {cell}: {row['patch']} changes nothing in {fact['against']} ({row['patch_outcome']}).")
        if one := main.get(cell):
            of = one["builder"] + f" at {one['commit']}" * bool(one["commit"])
            of += " with changes that are not committed" * bool(one["dirty"])
            if one["diff"]:
                how = markdown_code(f"git apply --directory={one['folder']} cell-{cell}.main.diff")
                each.append(f"- `cell-{cell}.main.diff`: the same against {of}; {how}.")
            else:
                each.append(f"- Against {of}: nothing to change ({one['outcome']}).")
        else:
            each.append(f"- Cell {cell}, against main: not tried.")
    if altered:
        each.append(f"- Names or places are replaced in {', '.join(altered)}, which may not apply for that.")
    return "\n".join(["## The patches", "", *each]) if each else ""


def reproduce(steps: Sequence[Step], results: Sequence[Mapping[str, Any]]) -> str:
    """The steps, each a block to paste."""
    fails, passes = (
        [one["cell"] for one in results if one["check"]["expected"] == word] for word in ("fails", "passes")
    )
    said = [
        f"`test_export.py` fails on the exports of {cells(fails)} and passes on those of {cells(passes)}."
        if fails and passes
        else ""
    ]
    intro = [
        "## Reproduce it",
        "",
        "You need [uv](https://docs.astral.sh/uv/) (or pip), bash and `patch`, and this folder; nothing of the project"
        " that made it. Paste the blocks in this folder, one after the other; `bash run.sh` does all of them. What they"
        " make goes to `envs/` and `made/`. Below each stands what was measured; where a number comes out otherwise,"
        " `noise.py` and `compare.py` print the stored one below it. Last digits may differ between processors,"
        " verdicts should not.",
        "",
        *filter(None, said),
        "",
        "Your own build: export the same checkpoint to a folder, and put that folder behind `compare.py CELL`, or"
        " `EXPORT=FOLDER` before the unit test.",
    ]
    return "\n".join(intro) + "\n\n" + "\n\n".join(step.markdown() for step in steps)


READING = """## How to read it

- *first*, *largest*, *forced*: the largest absolute difference of logits at the first new token, at any step while the
  texts agree, and at any step when both are fed the reference's tokens.
- *× noise*: the larger of the last two in multiples of the prompt's noise floor. Up to {within:g} is within noise,
  above {broken:g} broken, elevated in between: words for the numbers, whatever the text.
- `table.md` has all cells, `results.json` every number, `parting.md` where texts part and by how little,
  `hashes.json` what determines each cell, `commands.txt` the commands of the project that made this."""


def reading(results: Sequence[Mapping[str, Any]]) -> str:
    thresholds = next((one["thresholds"] for one in results if one["thresholds"]), None)
    return READING.format(**thresholds) if thresholds else ""
