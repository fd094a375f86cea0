"""Where a checkpoint comes from: a folder, a GGUF file, pickled weights, a config and a seed; what is kept where."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import Lab, results
from omegaconf import OmegaConf

from runner import cells, families, models, paths, schema
from runner.checkpoints import Inspector
from runner.environments import Resolution
from runner.failures import CheckpointFailed, ConfigFailed
from runner.models import Models, NotHere
from runner.remote import Remote
from runner.sharing import Sharing
from runner.store import Store

LLAMA = paths.PROJECT / "checkpoints" / "tiny_llama"
RESOLUTION = Resolution({"torch": "2"}, "e" * 64, "p")


def factors(**model) -> schema.Factors:
    return schema.Factors(model=schema.Model(**{"name": "m", **model}))


class Maker:
    """What a worker does, without one: writes the recipe's arguments into an artifact, and counts."""

    def __init__(self, store: Store):
        self.store, self.made = store, []

    async def __call__(self, recipe, key, resolution):
        self.made.append(recipe)
        with self.store.draft("model") as draft:
            (draft / "out").mkdir()
            (draft / "out" / "config.json").write_text(json.dumps(recipe.arguments))
            return self.store.finish("model", key, draft / "out", recipe.made_of, {})


def models_of(root: Path, remote: str | None = None, makes: bool = True) -> Models:
    async def resolve(environment):
        return RESOLUTION

    store = Store(root)
    sharing = Sharing(store, Remote(remote) if remote else None)
    return Models(store, sharing, Inspector(root), resolve, Maker(store) if makes else None)


def origin(found: Models, config: schema.Factors, constants: bool = False) -> models.Origin:
    async def to_the_end():
        try:
            return await found.origin(config, constants)
        finally:
            await found.sharing.settle()

    return asyncio.run(to_the_end())


def test_a_folder_is_taken_as_it_is(tmp_path):
    found = models_of(tmp_path)
    assert origin(found, factors(path=str(LLAMA))) == models.Origin(LLAMA, None)
    assert not found.make.made


def test_a_random_checkpoint_is_made_once_and_says_its_seed(tmp_path):
    found = models_of(tmp_path)
    first = origin(found, factors(family="llama", seed=3))
    assert first.said == "random llama, seed 3" and first.path.parent.name == "model"
    assert origin(models_of(tmp_path), factors(family="llama", seed=3)) == first
    assert origin(found, factors(family="llama", seed=4)).path != first.path
    assert len(found.make.made) == 2


def test_fields_of_ones_own_go_over_the_familys(tmp_path):
    found = models_of(tmp_path)
    origin(found, factors(family="llama", config={"num_hidden_layers": 9}))
    assert found.make.made[0].arguments["config"] == families.read("llama")["config"] | {"num_hidden_layers": 9}


def test_fields_of_nested_parts_are_set_one_by_one():
    config = {"a": 1, "text_config": {"b": 2, "rope_scaling": {"factor": 8, "rope_type": "linear"}}}
    changed = models.merged(config, {"text_config": {"rope_scaling": {"factor": 4}, "c": 3}, "a": None})
    assert changed == {
        "a": None, "text_config": {"b": 2, "c": 3, "rope_scaling": {"factor": 4, "rope_type": "linear"}},
    }  # fmt: skip


def test_what_is_here_already_goes_to_a_remote_that_is_set_later(tmp_path):
    origin(models_of(tmp_path / "one"), factors(family="llama"))
    remote = (tmp_path / "remote").as_uri()
    origin(models_of(tmp_path / "one", remote), factors(family="llama"))
    other = models_of(tmp_path / "two", remote)
    origin(other, factors(family="llama"))
    assert not other.make.made


def test_a_remote_that_fails_is_told_and_done_without(tmp_path):
    found, said = models_of(tmp_path, "nonsense://x"), []
    found.sharing.say = said.append
    assert origin(found, factors(family="llama")).path.is_dir()
    (told,) = said  # once, and nothing is waited for again
    assert "not had from store.remote" in told and "this sweep goes on without it" in told


def test_a_path_is_absolute_to_a_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    found = models_of(tmp_path / "store")
    origin(found, factors(path="x.gguf"))
    assert found.make.made[0].arguments["source"] == str(tmp_path / "x.gguf")


def test_nothing_is_made_where_nothing_may_be(tmp_path):
    with pytest.raises(NotHere, match="random llama, seed 0 is not here yet"):
        origin(models_of(tmp_path, makes=False), factors(family="llama"))


def test_what_is_made_goes_to_the_remote_and_comes_from_there(tmp_path):
    remote = (tmp_path / "remote").as_uri()
    one, two = models_of(tmp_path / "one", remote), models_of(tmp_path / "two", remote)
    made, pulled = (origin(found, factors(family="llama")) for found in (one, two))
    assert len(one.make.made) == 1 and not two.make.made
    assert (made.path / "config.json").read_bytes() == (pulled.path / "config.json").read_bytes()


def test_a_damaged_one_is_made_anew(tmp_path):
    first = origin(models_of(tmp_path), factors(family="llama"))
    file = first.path / "config.json"
    text = file.read_text()
    file.write_text(text.replace("random", "rendom"))
    again = models_of(tmp_path)
    assert origin(again, factors(family="llama")) == first
    assert len(again.make.made) == 1 and file.read_text() == text


def test_a_config_without_weights_serves_for_constants(tmp_path):
    folder = tmp_path / "real"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    found = models_of(tmp_path / "store")
    for config in (
        factors(path=str(folder)),
        factors(path=str(folder / "config.json")),
        factors(hub="a/b", config={"model_type": "llama"}),
    ):
        said = origin(found, config, constants=True).said
        assert said == "the config of m, narrowed, seed 0"
    assert found.make.made[0].arguments["shrink"] is True
    # Where there are weights, they are compared too.
    assert origin(found, factors(path=str(LLAMA)), constants=True).path == LLAMA


def test_a_gguf_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointFailed, match=r"nowhere\.gguf does not exist"):
        origin(models_of(tmp_path), factors(path=str(tmp_path / "nowhere.gguf")))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({}, "it names no checkpoint"),
        ({"path": "a", "hub": "b/c"}, "path and hub are given"),
        ({"path": " "}, "model.path: it is empty"),
        ({"path": "a", "gguf": "b.gguf"}, "model.gguf"),
        ({"family": "qwen33"}, "did you mean qwen3"),
        ({"config": {"hidden_size": 3}}, "no model_type"),
        ({"path": "a", "revision": "b"}, "model.revision"),
        ({"path": "a", "seed": 1}, "model.seed"),
    ],
)
def test_a_model_that_names_nothing_or_too_much_is_refused(model, said):
    with pytest.raises(ConfigFailed, match=said):
        cells.check_model(schema.Model(name="m", **model))


@given(st.sampled_from(["path", "hub", "family"]))
def test_a_name_comes_from_the_source(key):
    value = {"path": "/data/My-Model", "hub": "owner/My-Model", "family": "llama"}[key]
    model = OmegaConf.structured(schema.Model(**{key: value}))
    assert cells.name_of(model) == ("random_llama" if key == "family" else "My-Model")


def test_a_family_of_ones_own_is_a_file(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("what: Mine\nconfig: {model_type: llama}\n")
    assert families.read(str(own)) == {"what": "Mine", "config": {"model_type": "llama"}}
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert families.read(str(tmp_path / "config.json"))["config"] == {"model_type": "llama"}
    assert families.label(str(tmp_path / "config.json")) == tmp_path.name
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": 1e-05}')
    assert families.read(str(tmp_path / "config.json"))["config"]["rms_norm_eps"] == 1e-5
    own.write_text("what: [")
    with pytest.raises(ConfigFailed, match="cannot be read"):
        families.read(str(own))


def test_a_model_of_another_source_keeps_its_name(lab):
    for override in ("model.hub=a/b", "model.family=llama"):
        done = lab.run("model=tiny_llama", override, "action=plan")
        assert done.returncode == 2 and "has a checkpoint of its own" in done.stdout + done.stderr


def test_fields_of_a_model_that_is_not_made_are_refused(lab):
    done = lab.run("model=gemma3_1b", "model.config.sliding_window=7", "action=plan")
    assert done.returncode == 2 and "has a config of its own" in done.stdout + done.stderr


# With real parts.

SMALL = ("max_new_tokens=4", "noise.variants=[dtype]")


def rows_of(lab: Lab, *overrides: str) -> list[dict]:
    done = lab.run(*overrides, *SMALL)
    assert done.returncode in (0, 1), done.stderr
    return results(lab, "--sweep", "latest")


def shown(lab: Lab, row: dict) -> str:
    return lab.call("db", "show", str(row["cell"])).stdout


@pytest.mark.slow
def test_pickled_weights_are_read_and_code_in_them_is_not(shared_lab, rope, with_torch, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        shutil.copytree(LLAMA, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with_torch(
        """
import torch
from safetensors.torch import load_file
weights, good, bad = sys.argv[1:]
torch.save(load_file(weights), good + "/pytorch_model.bin")
class Code:
    def __reduce__(self):
        return open, (bad + "/ran", "w")
torch.save({"a": Code()}, bad + "/pytorch_model.bin")
print("[]")
""",
        LLAMA / "model.safetensors", good, bad,
    )  # fmt: skip
    rows = rows_of(shared_lab, "model=path", f"model.path={good}")
    assert {row["verdict"] for row in rows} == {"within_noise"} and "weights-only" in shown(shared_lab, rows[0])
    (row,) = rows_of(shared_lab, "model=path", f"model.path={bad}")
    assert row["status"] == "checkpoint_failed" and "more than weights" in row["error"]
    assert not (bad / "ran").exists()


REMOTE = 'raise SystemExit("code of the checkpoint ran")\n'


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["0.14.1", "0.18.0"])
def test_code_that_a_checkpoint_brings_is_not_run(shared_lab, rope, tmp_path, builder):
    folder = tmp_path / "coded"
    shutil.copytree(LLAMA, folder)
    for name in ("configuration_mine.py", "modeling_mine.py"):
        (folder / name).write_text(REMOTE)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(REMOTE)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_mine.Mine",
        "AutoModelForCausalLM": "modeling_mine.MineForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    rows = rows_of(shared_lab, "model=path", f"model.path={folder}", f"builder={builder}")
    assert {row["verdict"] for row in rows} == {"within_noise"}
    assert "remote_code" in shown(shared_lab, rows[0]) and "modeling_mine.py" in shown(shared_lab, rows[0])
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    (row,) = rows_of(shared_lab, "model=path", f"model.path={folder}", f"builder={builder}")
    assert row["status"] == "checkpoint_failed" and "does not know 'mine'" in row["error"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["new", "old"])
def test_the_text_model_of_a_multimodal_checkpoint_is_taken_alone(shared_lab, rope, with_torch, tmp_path, form):
    """Gemma 3 4B and up: what transformers saves today, and what it saved until 4.51."""
    folder = tmp_path / "multimodal"
    shutil.copytree(paths.PROJECT / "checkpoints" / "tiny_gemma3", folder)
    with_torch(
        """
import torch
from safetensors.torch import load_file, save_file
folder, form = sys.argv[1:]
text = load_file(folder + "/model.safetensors")
prefix = "model.language_model." if form == "new" else "language_model.model."
whole = {prefix + key.removeprefix("model."): value for key, value in text.items()}
towers = {"model.vision_tower.layers.0.weight": 1, "model.multi_modal_projector.norm.weight": 1}
whole |= {(k if form == "new" else k.removeprefix("model.")): torch.ones(4, 4) for k in towers}
save_file(whole, folder + "/model.safetensors", metadata={"format": "pt"})
with open(folder + "/config.json") as file:
    config = json.load(file)
outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
         "vision_config": {"hidden_size": 16},
         "torch_dtype": config.pop("torch_dtype"), "eos_token_id": config.pop("eos_token_id"), "text_config": config}
del config["architectures"]
with open(folder + "/config.json", "w") as file:
    json.dump(outer, file)
print("[]")
""",
        folder, form,
    )  # fmt: skip
    rows = rows_of(shared_lab, "model=path", f"model.path={folder}", "builder=0.14.1", "patch=rope_fix")
    ours = rows_of(shared_lab, "model=tiny_gemma3", "builder=0.14.1", "patch=rope_fix")
    assert [row["logits_max_abs_diff"] for row in rows] == [row["logits_max_abs_diff"] for row in ours]
    assert "the text model of Gemma3ForConditionalGeneration alone" in shown(shared_lab, rows[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["+model.config.hiden_size=96"], "did you mean hidden_size?"),
        (["+model.config.hidden_size=200000", "+model.config.intermediate_size=800000"], "GB to make, and"),
    ],
)
def test_a_random_model_that_makes_no_sense_is_refused(shared_lab, rope, overrides, said):
    (row,) = rows_of(shared_lab, "model=random", "model.family=llama", *overrides)
    assert row["status"] == "checkpoint_failed" and said in shown(shared_lab, row)
