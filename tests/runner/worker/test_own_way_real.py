"""A right export whose generation settings are spoilt: its logits are as before, and its own way is not."""

from __future__ import annotations

import json
import shutil

import pytest

pytestmark = pytest.mark.slow

# Runs the candidate's stage on each copy of an export; prints what it says of each.
CANDIDATE = """
import os
import candidate
arguments = json.loads(sys.argv[1])
found = {}
for name, export in arguments.pop("exports").items():
    os.makedirs(f"{name}/out")
    os.chdir(name)
    meta = candidate.run({**arguments, "export": export}, "out")
    warned = [row["name"] for row in meta["settings"] if row["weight"] == "warning"]
    own = meta["own_way"]
    logits = [entry["tokens"] for entry in json.load(open("out/continuations.json"))]
    found[name] = {"warned": warned, "logits": logits, **{k: own[k] for k in ("outcome", "says", "explained")}}
    os.chdir("..")
print(json.dumps(found))
"""


def spoil(export, edit=None, without=()):
    """A copy of an export's folder with other settings, or without some files."""

    def to(folder):
        shutil.copytree(export, folder)
        for name in without:
            (folder / name).unlink()
        if edit:
            path = folder / "genai_config.json"
            config = json.loads(path.read_text(encoding="utf-8"))
            edit(config)
            path.write_text(json.dumps(config), encoding="utf-8")
        return str(folder)

    return to


@pytest.fixture(scope="module")
def spoilt(rope, shared_lab, tmp_path_factory):
    """What the candidate's stage says of one right export and of its spoilt copies."""
    from lab import with_transformers_5

    from runner import paths

    stages = json.loads(shared_lab.call("db", "sql", STAGES, "--format", "json").stdout)
    at = {row["stage"]: shared_lab.store / row["stage"] / row["key"] for row in stages}
    copies = {
        "right": spoil(at["export"]),
        "end": spoil(at["export"], lambda config: config["model"].update(eos_token_id=7)),
        "begin": spoil(at["export"], lambda config: config["model"].update(bos_token_id=9)),
        "penalty": spoil(at["export"], lambda config: config["search"].update(repetition_penalty=1.3)),
        "template": spoil(at["export"], without=["chat_template.jinja"]),
    }
    folder = tmp_path_factory.mktemp("spoilt")
    arguments = {
        "exports": {name: make(folder / name) for name, make in copies.items()},
        "checkpoint": str(paths.PROJECT / "checkpoints" / "tiny_gemma3"),
        "prompts": str(at["prompts"] / "prompts.json"),
        "reference": str(at["reference"]),
        "end_tokens": [1, 5], "max_new_tokens": 20, "stop_at_end": True, "threads": 1, "precision": "fp32",
    }  # fmt: skip
    return with_transformers_5(), arguments


# The artifacts of the right export of the newest builder.
STAGES = (
    "SELECT stage, key FROM stage_run JOIN cell ON cell.result_id = stage_run.result_id"
    " WHERE builder = '0.18.0' AND patch = 'rope_fix'"
)


def test_an_export_is_judged_by_its_own_way(spoilt, run_script):
    python, arguments = spoilt
    found = run_script(python, CANDIDATE, json.dumps(arguments))
    logits = found["right"]["logits"]
    assert all(one["logits"] == logits for one in found.values())  # no number shows any of these faults
    assert (found["right"]["outcome"], found["right"]["warned"]) == ("same", [])
    assert found["end"]["outcome"] == "never_stops" and found["end"]["warned"] == ["eos_token_id"]
    assert (
        "does not stop within 40 tokens (it goes past the end token 5) where the reference stops after 8 tokens"
        in found["end"]["says"]
    )
    # The runtime's tokenizer has its own BOS: the config's takes no part in the text.
    assert (found["begin"]["outcome"], found["begin"]["warned"]) == ("same", ["bos_token_id"])
    assert found["penalty"]["warned"] == ["repetition_penalty"] and found["penalty"]["outcome"] != "not_known"
    assert found["template"]["outcome"] == "no_template" and found["template"]["warned"] == ["chat_template"]
    assert not any(one["explained"] for one in found.values())
