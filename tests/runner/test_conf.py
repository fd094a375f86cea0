"""Every file in conf/ composes, and says what its name says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra_plugins.paritylab import ParitylabSweeper
from packaging.requirements import Requirement

from runner import cells, environments, families, paths, releases, schema
from runner.compose import plain_of

FILES = sorted(path for path in paths.CONF.rglob("*/*.yaml") if path.parent != families.FOLDER)


@pytest.fixture(scope="module", autouse=True)
def hydra_here():
    Plugins.instance().register(ParitylabSweeper)
    ConfigStore.instance().store(name="schema", node=schema.Config, provider="paritylab")
    with initialize_config_dir(str(paths.CONF), version_base="1.3"):
        yield


# What the files that want a value are given.
GIVEN = {
    "model/path": ["model.path=."],
    "model/hub": ["model.hub=owner/name"],
    "model/random": ["model.family=llama"],
    "experiment/families": ["model.family=llama"],
    "builder/path": ["builder.path=."],
    "patch/pr": ["patch.number=1"],
    "patch/diff": ["patch.from=a", "patch.to=b"],
    "patch/file": ["patch.file=x.diff"],
}


def overrides_of(path: Path) -> list[str]:
    group = path.parent.relative_to(paths.CONF).as_posix()
    added = "+" if group == "experiment" else ""
    return [f"{added}{group}={path.stem}", *GIVEN.get(f"{group}/{path.stem}", [])]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(paths.CONF).as_posix())
def test_every_file_composes_to_a_valid_cell(path):
    config = compose("config", overrides_of(path), return_hydra_config=True)
    composed = plain_of(config)
    cell = cells.from_plain(composed.plain, composed.choices)
    assert cell.failure is None
    assert set(cell.factors) == set(cells.FACTORS)
    assert all(cell.factors.values())


VERSIONED = [path for path in FILES if re.fullmatch(r"\d+\.\d+\.\d+", path.stem)]


@pytest.mark.parametrize("path", VERSIONED, ids=lambda p: p.relative_to(paths.CONF).as_posix())
def test_a_version_file_names_its_version(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["name"] == path.stem
    assert content.get("version", path.stem) == path.stem
    assert isinstance(content["name"], str)


@pytest.mark.parametrize("path", VERSIONED, ids=lambda p: p.relative_to(paths.CONF).as_posix())
def test_a_version_is_the_one_that_its_environment_has(path):
    group = path.parent.name
    environment = compose("config", [f"{group}={path.stem}"])[group].environment
    assert {"runtime": environment.genai, "reference": environment.transformers}[group] == path.stem


def test_there_are_version_files():
    assert len(VERSIONED) >= 2


@pytest.mark.parametrize("version", releases.versions())
def test_every_release_has_a_valid_requirement_set(version):
    wanted = [Requirement(r) for r in releases.requirements(schema.Environment(genai=version))]
    assert {r.name for r in wanted} >= {"onnxruntime-genai", "onnxruntime", "transformers", "torch", "onnx-ir"}
    assert wanted[0].specifier.contains(version)


@pytest.mark.parametrize("path", sorted((paths.CONF / "environment").glob("*.txt")), ids=lambda p: p.name)
def test_constraints_name_no_address_and_agree_with_the_requirements(path):
    text = path.read_text(encoding="utf-8")
    assert "://" not in text and "--" not in text
    pins = environments.parse_pins(text)
    environments.refuse_gpu(pins)
    assert path.stem == f"transformers-{pins['transformers']}"
    for requirement in map(Requirement, releases.known()["common"]):
        assert requirement.specifier.contains(pins[requirement.name])


def test_every_line_has_its_constraints():
    for line in releases.known()["lines"]:
        assert (paths.CONF / "environment" / f"transformers-{line['transformers']}.txt").exists()


def test_one_torch_and_one_onnxruntime_in_all():
    pins = [environments.parse_pins(p.read_text()) for p in (paths.CONF / "environment").glob("*.txt")]
    assert len({p["torch"] for p in pins}) == 1
    assert len({p["onnxruntime"] for p in pins}) == 1


def test_patch_sets_hold_the_changes_that_files_define():
    for path in (paths.CONF / "patch").glob("*.yaml"):
        config = compose("config", overrides_of(path))
        for name in config.patch.changes:
            assert (paths.CONF / "patch" / f"{name}.yaml").exists()


def test_a_list_of_patches_is_a_set_in_that_order():
    config = compose("config", ["patch=[embed_scale_exact,norm_offset_fp32]"], return_hydra_config=True)
    assert list(config.patch.changes) == ["embed_scale_exact", "norm_offset_fp32"]
    composed = plain_of(config)
    cell = cells.from_plain(composed.plain, composed.choices)
    assert cell.factors["patch"] == "embed_scale_exact+norm_offset_fp32"
