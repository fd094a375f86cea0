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

from runner import cells, environments, paths, schema
from runner.compose import plain_of

# Groups whose files are composed through others, never chosen by themselves.
INNER = {"environment"}
FILES = sorted(path for path in paths.CONF.rglob("*.yaml") if path.name != "config.yaml")


@pytest.fixture(scope="module", autouse=True)
def hydra_here():
    Plugins.instance().register(ParitylabSweeper)
    ConfigStore.instance().store(name="schema", node=schema.Config, provider="paritylab")
    with initialize_config_dir(str(paths.CONF), version_base="1.3"):
        yield


def overrides_of(path: Path) -> list[str]:
    group = path.parent.relative_to(paths.CONF).as_posix()
    chosen = [f"{group}={path.stem}"] if group not in INNER else [f"{group}@builder.{group}={path.stem}"]
    return chosen + (["model.path=."] if path.stem == "path" else [])


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
def test_a_version_is_the_one_that_its_environment_asks_for(path):
    group = path.parent.name
    package = {"builder": "onnxruntime-genai", "runtime": "onnxruntime-genai", "reference": "transformers"}
    config = compose("config", [f"{group}={path.stem}"])
    wanted = {Requirement(r).name: str(Requirement(r).specifier) for r in config[group].environment.requirements}
    assert wanted[package[group]] == f"=={path.stem}"


def test_there_are_version_files():
    assert len(VERSIONED) >= 4


@pytest.mark.parametrize("path", sorted((paths.CONF / "environment").glob("*.txt")), ids=lambda p: p.name)
def test_constraints_agree_with_their_requirements_and_name_no_address(path):
    text = path.read_text(encoding="utf-8")
    assert "://" not in text and "--" not in text
    pins = environments.parse_pins(text)
    environments.refuse_gpu(pins)
    content = yaml.safe_load(path.with_suffix(".yaml").read_text(encoding="utf-8"))
    for text in content["requirements"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name])


def test_one_torch_and_one_onnxruntime_in_all():
    pins = [environments.parse_pins(p.read_text()) for p in (paths.CONF / "environment").glob("*.txt")]
    assert len({p["torch"] for p in pins}) == 1
    assert len({p["onnxruntime"] for p in pins}) == 1


def test_patch_sets_hold_the_changes_that_files_define():
    for path in (paths.CONF / "patch").glob("*.yaml"):
        config = compose("config", [f"patch={path.stem}"])
        for name in config.patch.changes:
            assert (paths.CONF / "patch" / f"{name}.yaml").exists()


def test_a_list_of_patches_is_a_set_in_that_order():
    config = compose("config", ["patch=[embed_scale_exact,norm_offset_fp32]"], return_hydra_config=True)
    assert list(config.patch.changes) == ["embed_scale_exact", "norm_offset_fp32"]
    composed = plain_of(config)
    cell = cells.from_plain(composed.plain, composed.choices)
    assert cell.factors["patch"] == "embed_scale_exact+norm_offset_fp32"
