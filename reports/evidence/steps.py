"""How a cell is made again by somebody who has not this project: a block of commands a step, and what each prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.models import error_line
from db.output import markdown_text
from reports.evidence import packages as package_sets
from reports.evidence.checkpoints import Given
from reports.evidence.folder import given as words

INSIDE = 'import importlib.util as u; print(u.find_spec("onnxruntime_genai").submodule_search_locations[0])'
PUBLIC_REPOSITORY = "https://github.com/microsoft/onnxruntime-genai"
MODELS = "src/python/py/models"


@dataclass(frozen=True)
class Step:
    """Commands to paste, and what they print.

    prints: lines; empty where nothing, or nothing that is known. ends: how its last line begins, where that is all that
    matters. told: before the commands.
    """

    title: str
    commands: Sequence[str]
    prints: Sequence[str] = ()
    told: Sequence[str] = ()
    ends: str = ""

    def markdown(self) -> str:
        parts = [f"### {self.title}", "", *(line for text in self.told for line in (text, ""))]
        if self.commands:
            parts += ["```bash", *self.commands, "```", ""]
        if self.prints:
            parts += ["It prints:", "", "```text", *self.prints, "```", ""]
        if self.ends:
            parts += [f"Its last line begins with `{self.ends}`.", ""]
        return "\n".join(parts).rstrip()


def steps(
    facts: Sequence[Mapping[str, Any]],
    packages: Mapping[str, Mapping[str, Any]],
    sets: Sequence[Mapping[str, Any]],
    checkpoints: Sequence[Given],
    given: Mapping[int, Given],
    results: Mapping[int, Mapping[str, Any]],
) -> list[Step]:
    """Every step in its order. results: of results.json, by cell."""
    venvs = package_sets.folders(packages)
    found = [environments(packages)] if packages else []
    found.append(checkpoint(checkpoints, facts, venvs))
    exported = [fact for fact in facts if can_export(fact)]
    for fact in exported:
        found.append(export(fact, venvs, given[fact["row"]["cell"]], results[fact["row"]["cell"]]))
    for number, one in enumerate(sets, 1):
        found += reference(number, one, facts, venvs, results)
    for fact in exported:
        row = fact["row"]
        given_to = next((one for one in sets if row["cell"] in one["cells"]), None)
        if row["status"] == "ok" and given_to:
            found.append(compare(fact, given_to, venvs, results[row["cell"]]))
        if check := check_of(fact, venvs, results[row["cell"]]):
            found.append(check)
    found += [without_builder(fact) for fact in facts if not can_export(fact)]
    return found


def can_export(fact: Mapping[str, Any]) -> bool:
    return fact["row"]["builder"] != "none" and "builder" in fact["environments"]


def python(fact: Mapping[str, Any], role: str, venvs: Mapping[str, str]) -> str:
    """A role's interpreter; one that a cell that failed early never came to is another role's."""
    environments = fact["environments"]
    made = environments.get(role) or environments.get("reference") or next(iter(environments.values()))
    return f"envs/{venvs[made['hash']]}/bin/python"


def titled(fact: Mapping[str, Any]) -> str:
    row = fact["row"]
    return f"cell {row['cell']}: {row['model']}, builder {row['builder']}, patch {row['patch']}"


def environments(packages: Mapping[str, Mapping[str, Any]]) -> Step:
    each = [
        f"- `packages/{stem}.txt`: {entry['role']} of {'cells' if len(entry['cells']) > 1 else 'cell'}"
        f" {', '.join(map(str, entry['cells']))} ({len(entry['packages'])} packages, {entry['platform']})"
        for stem, entry in packages.items()
    ]
    builds = package_sets.builds(packages)
    told = [
        "Every version is pinned, and `--no-deps` fetches nothing else. [uv](https://docs.astral.sh/uv/) takes torch's"
        " CPU build by itself, or from a folder of wheels that `UV_FIND_LINKS` names. With pip: `python -m venv`, and"
        " `pip install --no-deps -r FILE` with the index for the CPU that PyTorch's own page names (without it, pip"
        " takes a build for GPUs, of gigabytes)." + f" These numbers are of {builds}." * bool(builds),
        "\n".join(each),
    ]
    return Step("Environments", package_sets.block(packages), told=told)


def checkpoint(checkpoints: Sequence[Given], facts: Sequence[Mapping[str, Any]], venvs: Mapping[str, str]) -> Step:
    """Checkpoints that are enclosed, to be fetched, or to be made of others."""
    told, commands, made = [], [], []
    some = next((fact for fact in facts if fact["environments"]), None)
    interpreter = python(some, "reference", venvs) if some else "python"
    for one in checkpoints:
        if one.enclosed:
            code = [e["file"] for e in one.files or () if e["file"].endswith(".py")]
            said = f"enclosed, as it was measured ({one.origin})"
            said += f"; places are replaced in {', '.join(sorted(one.altered))}" * bool(one.altered)
            said += f"; without {', '.join(code)}, whose code was never run" * bool(code)
        elif one.made and not one.made.get("by_hand"):
            said = f"made here: {one.origin}"
            commands.append(f"{interpreter} checkpoint.py make {one.folder}")
            made.append(f"{one.folder}: made of {one.made['source']}")
        else:
            known = "`checkpoints.json` has the sha256 of every file" if one.files else f"{one.missing}"
            known += f"; the hash over all of them is {one.hash}" * bool(one.hash and not one.files)
            said = f"not enclosed: put it there from its origin, {one.origin}{fetched(one)}; {known}"
        told.append(f"- `{one.folder}`: {said}.")
    prints = [f"{one.folder}: as hashed" for one in checkpoints if one.files or one.hash]
    commands.append(f"{interpreter} checkpoint.py check")
    return Step("Checkpoint", commands, [*made, *prints], ["\n".join(told)])


def fetched(one: Given) -> str:
    """How a checkpoint that is not enclosed is had, where its origin says that."""
    if found := re.fullmatch(r"hub (\S+) at (\w+)", one.origin):
        return f" (`hf download {found[1]} --revision {found[2]} --local-dir {one.folder}`)"
    if re.search(r"\bGGUF\b|\.gguf\b", one.origin):
        return ", which was converted to safetensors: the hashes are those of the conversion"
    return ""


def export(fact: Mapping[str, Any], venvs: Mapping[str, str], given: Given, result: Mapping[str, Any]) -> Step:
    """The builder's own command line, from a copy of its sources, which the patch is applied to."""
    row, config = fact["row"], fact["config"]
    cell, builder, backend = row["cell"], config.get("builder", {}), config.get("backend", {})
    interpreter, sources = python(fact, "builder", venvs), f"made/sources-{cell}"
    told, block = [], [f"rm -rf {sources} made/export-{cell} && mkdir -p made"]
    if builder.get("kind", "release") == "release":
        block.append(f'cp -r "$({interpreter} -c {shlex.quote(INSIDE)})/models" {sources}')
        folder = sources
    else:
        block += [f"git clone --quiet {PUBLIC_REPOSITORY} {sources}"]
        block += [f"git -C {sources} checkout --quiet {fact['commit']}"] * bool(fact["commit"])
        folder = f"{sources}/{MODELS}"
        if fact["dirty"] or not fact["commit"]:
            told.append("The builder's sources were a working copy that is no commit; `hashes.json` has its hash.")
    if fact["diff_lost"]:
        told.append(
            f"The difference that {markdown_text(row['patch'])} makes in these sources is not kept, and the command"
            " below exports them without it: other sources came to the same files first. `hashes.json` has the hash of"
            " the patched ones (`overlay_tree`)."
        )
    block += [f"patch --silent -p1 -d {folder} < cell-{cell}.patch.diff"] * bool(fact["diff"])
    extra = [shlex.quote(f"{key}={value}") for key, value in (backend.get("extra_options") or {}).items()]
    options = f" --extra_options {' '.join(extra)}" if extra else ""
    block += [
        f"HF_HUB_OFFLINE=1 {interpreter} {folder}/builder.py -i {shlex.quote(given.folder)} -o made/export-{cell}"
        f" -p {row['precision']} -e {backend.get('execution_provider', 'cpu')} -c made/cache-{cell}{options}"
        f" > made/export-{cell}.log 2>&1; echo $? > made/export-{cell}.exit",
        f'echo "builder\'s exit code: $(cat made/export-{cell}.exit)"',
    ]
    failed = row["status"] == "export_failed"
    block += [f"tail -n 1 made/export-{cell}.log"] * failed
    prints = ["builder's exit code: 0"]
    if failed:
        said = error_line(result.get("error_type"), result.get("error")) or ""
        prints = ["builder's exit code: 1", *said.splitlines()[:1]]
    return Step(f"Export of {titled(fact)}", block, prints, told)


def reference(number: int, one: Mapping[str, Any], facts: Sequence, venvs: Mapping[str, str], results) -> list[Step]:
    """The reference and its noise, once for all cells that share them."""
    fact = next(fact for fact in facts if fact["row"]["cell"] == one["cells"][0])
    interpreter, cell = python(fact, "reference", venvs), one["cells"][0]
    of = ", ".join(map(str, one["cells"]))
    texts = {prompt["prompt"]: prompt["reference_text"] for prompt in results[cell]["prompts"]}
    said = [f"  {p['name']}: {texts[p['name']]!r}" for p in one["prompts"] if p["name"] in texts]
    first = Step(
        f"Reference of cells {of}",
        [f"{interpreter} reference.py {cell}"],
        [*said, f"generate(), {one['prompts'][0]['name']}: {own_line(results[cell], one, 'reference')}"],
        [f"The checkpoint in transformers, from the ids of `prompts.json`; written to `made/reference-{number}.npz`."],
    )
    told = [
        "How far the reference moves by itself when it is computed otherwise: no export can be asked to be nearer."
        " `wide.py` is what makes fp64 a true one."
    ]
    if "precision" in {name for row in one["noise"] for name in row["variants"]}:
        told.append(
            "The floor in `results.json` is another here: that of the reference with its own weights rounded to the"
            " export's precision, which this folder does not make. `compare.py` takes it from there."
        )
        return [first, Step(f"Noise floor of cells {of}", [], told=told)]
    left = [f"  left out: {name}: {why}" for name, why in one["left_out"].items()]
    printed = [f"  {words.floor_line(row)}" for row in one["noise"]] + left
    return [first, Step(f"Noise floor of cells {of}", [f"{interpreter} noise.py {cell}"], printed, told)]


def compare(
    fact: Mapping[str, Any], one: Mapping[str, Any], venvs: Mapping[str, str], result: Mapping[str, Any]
) -> Step:
    cell, interpreter = fact["row"]["cell"], python(fact, "runtime", venvs)
    lines = [
        f"  {words.line(prompt['prompt'], words.of_database(prompt), result['thresholds'])}"
        for prompt in result["prompts"]
    ]
    name = one["prompts"][0]["name"]
    more = [
        f"the runtime's own loop, {name}: {own_line(result, one, 'generation')}",
        f"transformers' generate(), {name}: {own_line(result, one, 'reference')}",
    ]
    return Step(f"Export beside the reference, {titled(fact)}", [f"{interpreter} compare.py {cell}"], [*lines, *more])


def own_line(result: Mapping[str, Any], one: Mapping[str, Any], side: str) -> str:
    """A generation of the database's, "…" where it has none of the first prompt that ran so."""
    made = (result.get("own_way") or {}).get(side) or {}
    if made.get("state") != "ran" or made.get("prompt") != one["prompts"][0]["name"]:
        return "…"
    return words.own_line(made["text"], len(made["tokens"]), made["stopped"])


def check_of(fact: Mapping[str, Any], venvs: Mapping[str, str], result: Mapping[str, Any]) -> Step | None:
    check = result["check"]
    if check["expected"] is None:
        return None
    cell, interpreter = fact["row"]["cell"], python(fact, "runtime", venvs)
    word = "OK" if check["expected"] == "passes" else "FAILED"
    told = f"It {check['expected']}: {check['why']}."
    return Step(
        f"Unit test of {titled(fact)}",
        [f"CELL={cell} {interpreter} -m unittest test_export"],
        told=[told],
        ends=word,
    )


def without_builder(fact: Mapping[str, Any]) -> Step:
    row = fact["row"]
    said = (
        f"No builder's export: backend {row['backend']}, {row['source'] or row['status']}. The command in"
        " `commands.txt` computes it again."
        if row["builder"] == "none"
        else f"No export that could be made again: {row['status']} on backend {row['backend']}."
    )
    return Step(titled(fact).capitalize(), [], told=[said])


def run_script(steps: Sequence[Step]) -> str:
    """run.sh: every block of the README, one after the other; a builder that fails is a result."""
    parts = ["#!/usr/bin/env bash", "# Every step of README.md.", 'cd "$(dirname "$0")" || exit 1', ""]
    for step in steps:
        if step.commands:
            parts += [f"echo {shlex.quote('== ' + step.title)}", *step.commands, ""]
    return "\n".join(parts)
