"""What stands below the tables: what the multiples are of, warnings, patches that changed nothing, failures."""

from __future__ import annotations

import textwrap
from typing import Any

from sqlalchemy import Engine

from db import detail, query
from db.output import markdown_code, markdown_text
from reports.table import cells

MOST_FINDINGS = 12
MOST_ERROR = 300  # characters of an error; `python -m db show` has all of it
MOST_WORDS = 160  # characters of a reason
WITHOUT = "Without the noise of its own precision there is no floor and no verdict"
OWN_WAY = (
    "Its own way: the runtime's own tokenizer, chat template, search options, loop and end tokens, beside transformers'"
    " generate() with the checkpoint's generation config; greedy on both sides."
)
# Outcomes of it that are told as findings.
FAULTY = (
    "never_stops", "stops_early", "stops_late", "differs", "no_template", "other_ids", "decodes_otherwise",
)  # fmt: skip
PATCH_WORDS = {"present": "is already in", "not_applicable": "has nothing to change in"}
REVERSED_WORDS = {"present": "has been taken out already of", "not_applicable": "has nothing to take out of"}


def with_findings(engine: Engine, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of cells with their "findings", why variants were "noise_left_out", and how the "noise_rounded" by
    precision was made: "float32 / float16", None where the export is in fp32."""
    found = detail.findings_of(engine, sorted({row["result"] for row in rows if row["result"]}))
    noise_rows = detail.noise_rows(engine, sorted({row["noise_key"] for row in rows if row["noise_key"]}))
    left_out = {
        key: [f"{value.variant}: {value.left_out}" for value in values if value.left_out]
        for key, values in noise_rows.items()
    }
    rounded = {
        key: next((value.versus for value in values if value.variant == "precision" and value.versus), None)
        for key, values in noise_rows.items()
    }
    return [
        row
        | {"noise_rounded": rounded.get(row["noise_key"])}
        | {"findings": [{c: getattr(f, c) for c in detail.FINDING_COLUMNS} for f in found.get(row["result"], [])]}
        | {"noise_left_out": left_out.get(row["noise_key"], [])}
        for row in rows
    ]


def noise(rows: list[dict[str, Any]]) -> list[str]:
    """What the multiples are of, what the verdicts stand for, and what was no noise."""
    judged = [row for row in rows if row["thresholds"]]
    measured = [row for row in judged if row["noise_floor_largest"] is not None]
    plain, rounded = ([row for row in measured if bool(row["noise_rounded"]) is own] for own in (False, True))
    lines = []
    if measured:
        lines.append(
            "Noise floor: how far the reference moves by itself, at most; × noise: the largest difference in multiples"
            f" of its own prompt's floor.{limits(plain)}"
        )
    if rounded:
        how = ", ".join(sorted({row["noise_rounded"] for row in rounded}))
        lines.append(
            "An export in another precision than fp32 is held to that precision's noise, the reference with its own"
            f" weights rounded so ({how}).{limits(rounded)}"
        )
    return lines + left_out(judged)


def limits(rows: list[dict[str, Any]]) -> str:
    """The thresholds of some rows, which have the same; "" for no row."""
    if not rows:
        return ""
    thresholds = rows[0]["thresholds"]
    within, broken = (f"{thresholds[name]:g}" for name in ("within", "broken"))
    return (
        f" Up to {within} is within noise, above {broken} broken: a verdict on the numbers, whatever the text."
        " How far right exports come: `python -m benchmarks.right_exports`."
    )


def left_out(rows: list[dict[str, Any]]) -> list[str]:
    """What was no noise, once a model; and whose own precision's could not be measured, which leaves no floor."""
    found: dict[tuple[str, str], str] = {}
    without: dict[str, list[int]] = {}
    for row in rows:
        for why in row["noise_left_out"]:
            variant, _, reason = why.partition(": ")
            if variant == "precision":
                without.setdefault(reason, []).append(row["cell"])
            else:
                found.setdefault((row["model"], variant), textwrap.shorten(why, MOST_WORDS, placeholder=" …"))
    return [
        *(f"Left out of {model}'s noise floor: {markdown_text(why)}." for (model, _), why in sorted(found.items())),
        *(f"{WITHOUT}, {cells(mine)}: {markdown_text(why)}." for why, mine in without.items()),
    ]


def overridden(rows: list[dict[str, Any]]) -> list[str]:
    """What a generation config asked for, and greedy decoding over raw logits left out."""
    found: dict[str, list[int]] = {}
    for row in rows:
        for side, options in (row["overridden"] or {}).items():
            said = ", ".join(f"{name} {markdown_text(value)}" for name, value in options.items())
            found.setdefault(f"the {side}'s {said}", []).append(row["cell"])
    return [f"Left out of decoding, {cells(mine)}: {said}." for said, mine in found.items()]


def cut(rows: list[dict[str, Any]]) -> list[str]:
    """Whose texts the limit of tokens cut before it was known what they are."""
    mine = [row for row in rows if row.get("cut_count")]
    if not mine:
        return []
    limits = ", ".join(sorted({row["max_new_tokens"] for row in mine}, key=lambda n: (len(n), n)))
    return [
        f"Cut, {cells(row['cell'] for row in mine)}: a text came to the limit (max_new_tokens {limits}) before its end,"
        " and what it is, right or wrong, is not known. Its tokens are compared all the same; a larger max_new_tokens"
        " shows the rest."
    ]


def own_way(rows: list[dict[str, Any]]) -> list[str]:
    """How exports run the way a user runs them; a fault of it is a warning, and stands among the findings."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        detail = row.get("own_way_detail")
        if detail and (row["own_way"] not in FAULTY or detail["explained"]):
            name = (detail.get("generation") or {}).get("prompt") or ""
            found.setdefault((f" on prompt {markdown_text(name)}" if name else "", detail["says"]), []).append(
                row["cell"]
            )
    return [
        f"{cells(mine).capitalize()}, run {'their' if len(mine) > 1 else 'its'} own way{about}: {markdown_text(says)}."
        for (about, says), mine in found.items()
    ] + ([OWN_WAY] if any(about for about, _ in found) else [])


def findings(rows: list[dict[str, Any]]) -> list[str]:
    """Each warning once, with the cells and prompts that it is about; what a check says of several prompts, of one."""
    found: dict[tuple, tuple[dict[int, None], dict[str, None]]] = {}
    for row in rows:
        for finding in row["findings"]:
            key = (finding["kind"], finding["check"], finding["evidence"])
            mine, prompts = found.setdefault(key, ({}, {}))
            mine[row["cell"]] = None
            prompts |= {finding["prompt"]: None} if finding["prompt"] else {}
    alike: dict[tuple, list[tuple[str, dict[str, None]]]] = {}
    for (kind, check, evidence), (mine, prompts) in found.items():
        # Of prompts each has its own evidence; a warning's is what it says.
        same = (kind, check, tuple(mine), None if prompts else evidence)
        alike.setdefault(same, []).append((evidence, prompts))
    lines = [finding_line(kind, check, mine, said) for (kind, check, mine, _), said in alike.items()]
    if len(lines) > MOST_FINDINGS:
        first = list(alike)[MOST_FINDINGS][2][0]
        more = f"{len(lines) - MOST_FINDINGS} more findings: `python -m db show {first}` and others."
        lines = [*lines[:MOST_FINDINGS], more]
    return lines


def finding_line(kind: str, check: str, mine: tuple[int, ...], said: list[tuple[str, dict[str, None]]]) -> str:
    """What one check found in some cells: the first evidence, and which prompts have their own like it."""
    prompts = list(dict.fromkeys(prompt for _, ours in said for prompt in ours))
    named = f", prompt{'s' * (len(prompts) > 1)} {markdown_text(', '.join(prompts))}" if prompts else ""
    evidence, first = said[0]
    others = f" ({markdown_text(next(iter(first)))}'s; the others' is alike)" if len(said) > 1 else ""
    title = "Prompt audit" if kind == "prompt" else "Warning"
    return f"{title}, {cells(mine)}{named}: {check}: {markdown_code(evidence)}{others}."


def stand_ins(rows: list[dict[str, Any]]) -> list[str]:
    """What was made by no real thing."""
    found: dict[str, list[int]] = {}
    for row in rows:
        if row["stand_in"]:
            found.setdefault(row["stand_in"], []).append(row["cell"])
    return [f"Made by the stand-in {name}: {cells(mine)}." for name, mine in found.items()]


def sources(rows: list[dict[str, Any]]) -> list[str]:
    """What candidates without a builder were computed by."""
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["builder"] == "none" and row["source"]:
            found.setdefault((row["backend"], row["source"]), []).append(row["cell"])
    return [
        f"Backend {backend}{f', {cells(mine)}' if len(found) > 1 else ''}: {markdown_text(source)}."
        for (backend, source), mine in found.items()
    ]


def patch(row: dict[str, Any]) -> str:
    """That a patch changed nothing, and why."""
    words = REVERSED_WORDS if row["patch"].endswith(" reversed") else PATCH_WORDS
    return f"{row['patch']} {words[row['patch_outcome']]} builder {row['builder']}."


def in_short(error: str | None) -> str:
    return textwrap.shorten(error or "", MOST_ERROR, placeholder=" …")


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """Each kind of failure once, with its cells, the whole error, and what to do."""
    kinds: dict[tuple, list[int]] = {}
    for row in rows:
        if row["status"] not in ("ok", query.PENDING):
            kinds.setdefault((row["status"], row["error"], row["hint"]), []).append(row["cell"])
    lines = []
    for (status, error, hint), mine in kinds.items():
        lines.append(
            f"{cells(mine).capitalize()}: {status}: {markdown_text(in_short(error))}"
            + (f" ({markdown_text(hint)})" if hint else "")
            + f"; `python -m db show {mine[0]}`"
        )
    return lines
