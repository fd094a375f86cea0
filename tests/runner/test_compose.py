"""A sweep is composed part by part; that must be the same as composing each cell."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from composing import sweep_of
from hydra.types import RunMode

from runner import cells, compose, paths, releases, schema
from runner.failures import ConfigFailed


def alone(loader, *arguments: str) -> cells.Cell:
    config = loader.load_configuration("config", list(arguments), run_mode=RunMode.RUN)
    whole = compose.plain_of(config)
    return cells.from_plain(whole.plain, whole.choices)


def test_the_last_axis_varies_fastest(loader):
    found = sweep_of(loader, "builder=0.14.1,0.18.0", "patch=none,rope_fix")
    assert [(c.factors["builder"], c.factors["patch"]) for c in found] == [
        ("0.14.1", "none"), ("0.14.1", "rope_fix"), ("0.18.0", "none"), ("0.18.0", "rope_fix"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        (["dtype=bf16"], ["builder=0.14.1", "patch=rope_fix"]),
        (["max_new_tokens=3", "+backend.extra_options.a=b"], ["model=tiny_gemma2", "layers=2"]),
        (["prompts.template=none"], ["builder=0.14.1", "builder.name=mine"]),
        ([], ["builder.extra=[x==1]"]),
    ],
)
def test_a_swept_cell_is_the_cell_composed_alone(loader, arguments):
    fixed, swept = arguments
    if not fixed:
        found = sweep_of(loader, *fixed, "threads=1,2", "layers=1,2")[3]
        expected = alone(loader, *fixed, "threads=2", "layers=2")
    else:
        key_first = {override.split("=")[0]: override.split("=")[1] for override in swept}
        axes = [f"{key}={value},{value}" for key, value in key_first.items()]
        found = sweep_of(loader, *fixed, *axes)[0]
        expected = alone(loader, *fixed, *swept)
    assert found.factors == expected.factors
    assert asdict(found.config) == asdict(expected.config)


def test_a_value_that_does_not_compose_fails_its_cells_alone(loader):
    found = sweep_of(loader, "builder=0.14.1,9.9.9", "dtype=fp32,bf16")
    assert [cell.failure is None for cell in found] == [True, True, False, False]
    failed = found[2]
    assert failed.factors["builder"] == "9.9.9" and failed.factors["dtype"] == "fp32"
    assert "builder/9.9.9" in failed.failure.message
    assert "main, path, 0.16.0, 0.17.0, 0.17.1, 0.18.0" in failed.failure.hint


def test_an_unpublished_version_lists_the_nearest(loader):
    _, failed = sweep_of(loader, "builder=0.14.1,0.14.7")
    assert "0.14.0, 0.14.1, 0.15.0, 0.15.1" in failed.failure.hint


def test_every_published_release_is_a_builder_without_a_file(loader):
    found = sweep_of(loader, f"builder={','.join(releases.versions())},0.19.0")
    assert [cell.failure for cell in found] == [None] * len(found)
    assert [cell.factors["builder"] for cell in found] == [*releases.versions(), "0.19.0"]
    assert not list((paths.CONF / "builder").glob("[0-9]*"))


def test_a_value_of_the_wrong_type_names_its_key(loader):
    found = sweep_of(loader, "threads=1,x")
    assert found[0].failure is None
    assert "threads" in found[1].failure.message


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("dtype=fp31", "stored, fp32, bf16, fp16"),
        ("precision=fp31", "fp32"),
        ("layers=0", "positive"),
        ("layers=some", "all"),
        ("max_new_tokens=0", "1 or more"),
        ("threads=-1", "1 or more"),
        ("prompts.template=jinja", "chat, none"),
    ],
)
def test_a_bad_value_says_what_is_allowed(loader, override, says):
    (cell,) = sweep_of(loader, override)
    assert isinstance(cell.failure, ConfigFailed)
    assert override.split("=")[0] in cell.failure.message
    assert says in cell.failure.hint


def test_a_missing_value_says_which(loader):
    (cell,) = sweep_of(loader, "model=path")
    assert "model.path" in cell.failure.message
    (cell,) = sweep_of(loader, "model=path", "model.path=/some/where/my_model")
    assert cell.failure is None and cell.factors["model"] == "my_model"


def test_nested_keys_of_one_group_vary_together(loader):
    found = sweep_of(loader, "builder=main,0.18.0", "builder.transformers=5.13.0,5.14.0")
    assert [c.config.builder.transformers for c in found] == ["5.13.0", "5.14.0", "5.13.0", "5.14.0"]
    assert [c.factors["builder"] for c in found] == ["main", "main", "0.18.0", "0.18.0"]


def test_a_patch_list_is_named_by_its_members(loader):
    swept = sweep_of(loader, "patch=none,rope_fix,[rope_fix,embed_scale_exact]", "dtype=fp32,bf16")
    assert [c.factors["patch"] for c in swept[::2]] == ["none", "rope_fix", "rope_fix+embed_scale_exact"]
    (fixed,) = sweep_of(loader, "patch=[rope_fix,embed_scale_exact]")
    assert fixed.factors["patch"] == "rope_fix+embed_scale_exact"
    assert list(fixed.config.patch.changes)[-1] == "embed_scale_exact" and len(fixed.config.patch.changes) == 4


def test_what_reaches_inside_a_factor_is_told(loader):
    swept = sweep_of(loader, "reference.attention=eager,sdpa", "+backend.extra_options.a=1")
    assert [c.options for c in swept] == [
        "backend.extra_options.a=1 reference.attention=eager", "backend.extra_options.a=1 reference.attention=sdpa",
    ]  # fmt: skip
    assert swept[0].hash != swept[1].hash
    (plain,) = sweep_of(loader, "model=path", "model.path=/a", "dtype=bf16", "limits.stall_seconds=5")
    assert plain.options == ""


def test_a_secret_in_an_override_is_told_to_nobody(loader):
    (cell,) = sweep_of(loader, "builder=main", "builder.repo='https://bob:sekretpw77@example.org/x.git'")
    assert "sekretpw77" not in cell.options + cell.name() + str(cell.asked())
    assert "sekretpw77" in cell.config.builder.repo


@pytest.mark.parametrize(
    ("override", "says"),
    [("builder.as_of='1 day'", "no date"), ("builder.version=foo", "no release"), ("builder.version=0.14.7", "0.14.1")],
)
def test_a_builder_that_cannot_be_is_refused(loader, override, says):
    (cell,) = sweep_of(loader, "builder=main", override)
    assert says in cell.failure.message + cell.failure.hint


def test_models_of_one_name_are_told_apart(loader):
    swept = sweep_of(loader, "model=path", "model.path=/x/m,/y/m")
    assert [c.factors["model"] for c in swept] == ["/x/m", "/y/m"]


def test_a_path_beside_a_model_that_has_one_is_refused(loader):
    one, two = sweep_of(loader, "model=path,tiny_llama", "model.path=/x/mine")
    assert one.config.model.path == "/x/mine" and one.factors["model"] == "mine"
    assert "model=tiny_llama has a checkpoint of its own" in two.failure.message


def test_options_go_before_overrides_wherever_they_stand():
    given = ["-m", "a=1", "--config-dir", "conf", "b=2", "--cfg", "job"]
    assert compose.options_first(given) == ["-m", "--config-dir", "conf", "--cfg", "job", "a=1", "b=2"]


def test_a_duplicate_prompt_name_is_found(loader):
    (cell,) = sweep_of(loader, "prompts.prompts=[{name: a, text: x}, {name: a, text: y}]")
    assert "'a' stands twice" in cell.failure.message and cell.factors["prompts"] == "five"


def test_an_endless_sweep_is_refused(loader):
    with pytest.raises(ConfigFailed, match="no cells"):
        sweep_of(loader, "max_new_tokens=interval(1,5)")


def test_a_diffs_keys_stand_beside_a_patch_that_has_none(loader):
    none, pull, both = sweep_of(loader, "patch=none,pr,[rope_fix,pr]", "patch.number=2939")
    assert [cell.factors["patch"] for cell in (none, pull, both)] == ["none", "pr-2939", "rope_fix+pr-2939"]
    assert none.config.patch.diffs == [] and pull.config.patch.diffs == [schema.Diff(number=2939)]
    (turned,) = sweep_of(loader, "patch=diff", "patch.from=a", "patch.to=b", "patch.reverse=true")
    assert turned.factors["patch"] == "a..b reversed" and turned.config.patch.reverse


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["patch=pr"], "patch.number"),
        (["patch=diff", "patch.from=a"], "patch.to"),
        (["patch=file"], "patch.file"),
        (["patch=pr", "patch.number=two"], "'two'"),
        (["patch.reverse=maybe"], "patch.reverse"),
    ],
)
def test_a_diff_that_is_not_named_is_refused(loader, arguments, says):
    (cell,) = sweep_of(loader, *arguments)
    assert says in cell.failure.message


def test_a_key_given_twice_is_refused(loader):
    with pytest.raises(ConfigFailed, match="builder is given twice"):
        sweep_of(loader, "builder=0.14.1,0.18.0", "builder=0.18.0")


@pytest.mark.parametrize("argument", ["builder=glob(zzz*)", "max_new_tokens=range(1,1)"])
def test_a_sweep_of_nothing_is_refused(loader, argument):
    with pytest.raises(ConfigFailed, match="no value matches"):
        sweep_of(loader, argument)


def test_a_patch_that_is_taken_away_is_not_named(loader):
    assert sweep_of(loader, "patch=[]")[0].factors["patch"] == "none"
    (quoted,) = sweep_of(loader, "patch=['rope_fix','embed_scale_exact']")
    assert quoted.factors["patch"] == "rope_fix+embed_scale_exact"


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("{name: a, text: ' '}", "no text"),
        ("{name: ' ', text: x}", "empty name"),
        ("{name: a, text: x, expect: ''}", "nothing"),
        ("{name: a, text: x, expect: y, reject: [z, ' ']}", "rejects nothing"),
        ("{name: a, text: x, expect: It is  Paris., reject: ['is Paris']}", "rejects 'is Paris', which the text"),
    ],
)
def test_blank_prompts_are_refused(loader, prompt, says):
    (cell,) = sweep_of(loader, f"prompts.prompts=[{prompt}]")
    assert says in cell.failure.message


def test_rejected_texts_are_part_of_a_prompt(loader):
    (cell,) = sweep_of(loader, "prompts.prompts=[{name: a, text: x, expect: knot Paris, reject: [not Paris]}]")
    assert cell.failure is None and cell.config.prompts.prompts[0].reject == ["not Paris"]
    (shipped,) = sweep_of(loader, "prompts=five")
    assert all(prompt.reject for prompt in shipped.config.prompts.prompts)


@pytest.mark.parametrize("path", ["~nosuchuser/x", "''"])
def test_an_impossible_model_path_is_refused(loader, path):
    (cell,) = sweep_of(loader, "model=path", f"model.path='{path}'" if path[0] == "~" else f"model.path={path}")
    assert "model" in cell.failure.message


def test_a_misspelt_key_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigFailed) as caught:
        compose.check_keys(["-m", "bilder=0.14.1"], paths.CONF)
    assert "did you mean builder?" in caught.value.message
    assert "patch" in caught.value.hint
    compose.check_keys(["-m", "builder=0.14.1", "hydra/launcher=x", "+backend.extra_options.a=b"], paths.CONF)


def with_experiment(loader, tmp_path, text: str, *arguments: str) -> list[cells.Cell]:
    """The cells of an experiment file of one's own."""
    (tmp_path / "experiment").mkdir(exist_ok=True)
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}", encoding="utf-8")
    given = ["+experiment=mine", *arguments]
    found = [f"hydra.searchpath=[file://{tmp_path}]", *given]
    master = loader.load_configuration("config", found, run_mode=RunMode.MULTIRUN)
    return compose.compose_sweep(loader, master, given)


def patches(found: list[cells.Cell]) -> list[str]:
    assert [cell.failure for cell in found] == [None] * len(found)
    return [cell.factors["patch"] for cell in found]


def test_suspects_are_the_patch_axis(loader):
    found = sweep_of(loader, "suspects=[norm_offset_fp32,embed_scale_exact]", "builder=0.14.1,0.18.0")
    both = "norm_offset_fp32+embed_scale_exact"
    assert patches(found) == ["none", "norm_offset_fp32", "embed_scale_exact", both] * 2
    assert [cell.factors["builder"] for cell in found] == ["0.14.1"] * 4 + ["0.18.0"] * 4
    (written,) = sweep_of(loader, "patch=[norm_offset_fp32,embed_scale_exact]", "builder=0.14.1")
    assert found[3].hash == written.hash and asdict(found[3].config) == asdict(written.config)


def test_three_suspects_are_each_alone_and_all_but_each(loader):
    a, b, c = "rope_local_unscaled", "rope_global_scaled", "embed_scale_exact"
    found = sweep_of(loader, f"suspects=[{a},{b},{c}]")
    assert patches(found) == ["none", a, b, c, f"{b}+{c}", f"{a}+{c}", f"{a}+{b}", f"{a}+{b}+{c}"]


def test_suspects_of_an_experiment_can_be_overridden(loader, tmp_path):
    text = "suspects: [embed_scale_exact, rope_fix]\nbuilder: {transformers: 5.13.0}\n"
    assert len(with_experiment(loader, tmp_path, text)) == 4
    assert patches(with_experiment(loader, tmp_path, text, "suspects=[rope_fix]")) == ["none", "rope_fix"]
    assert patches(with_experiment(loader, tmp_path, text, "suspects=[]", "patch=none,rope_fix")) == [
        "none", "rope_fix",
    ]  # fmt: skip
    with pytest.raises(ConfigFailed, match="both given"):
        with_experiment(loader, tmp_path, text, "patch=none,rope_fix")


def test_suspects_may_be_patches_of_ones_own(loader, tmp_path):
    (tmp_path / "patch").mkdir()
    (tmp_path / "patch" / "my_fix.yaml").write_text((paths.CONF / "patch" / "embed_scale_exact.yaml").read_text())
    assert patches(with_experiment(loader, tmp_path, "suspects: [my_fix]\n")) == ["none", "my_fix"]


def test_an_experiments_patch_beside_suspects_is_refused(loader, tmp_path):
    text = "defaults:\n  - override /patch: rope_fix\nsuspects: [embed_scale_exact]\n"
    with pytest.raises(ConfigFailed, match="an experiment with a patch are both given"):
        with_experiment(loader, tmp_path, text)


def test_what_reaches_inside_a_patch_stands_beside_suspects(loader):
    found = sweep_of(loader, "suspects=[pr,rope_fix]", "patch.number=2939")
    assert patches(found) == ["none", "pr-2939", "rope_fix", "rope_fix+pr-2939"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["suspects=rope_fix"], "is no list"),
        (["suspects=[rope]"], "'rope' is not allowed"),
        (["suspects=[none]"], "'none' is not allowed"),
        (["suspects=[[rope_fix]]"], "is not allowed"),
        (["suspects=[rope_fix,rope_fix]"], "'rope_fix' stands twice"),
    ],
)
def test_suspects_that_are_none_say_what_is_allowed(loader, arguments, says):
    with pytest.raises(ConfigFailed, match=says) as caught:
        sweep_of(loader, *arguments)
    assert "embed_scale_exact" in caught.value.hint and "none" not in caught.value.hint


@pytest.mark.parametrize("patch", ["patch=none", "patch=none,rope_fix", "patch=[rope_fix]"])
def test_suspects_beside_a_patch_are_refused(loader, patch):
    with pytest.raises(ConfigFailed, match="both given") as caught:
        sweep_of(loader, "suspects=[rope_fix]", patch)
    assert patch in caught.value.message


@pytest.mark.parametrize("argument", ["suspects=rope_fix,embed_scale_exact", "rerun=none,all", "action=plan,run"])
def test_a_setting_is_not_swept(loader, argument):
    with pytest.raises(ConfigFailed, match="is the sweep's"):
        sweep_of(loader, argument)


def test_swept_experiments_with_suspects_of_their_own_are_refused(loader, tmp_path):
    with pytest.raises(ConfigFailed, match="one of several experiments"):
        (tmp_path / "experiment").mkdir()
        (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nsuspects: [rope_fix]\n")
        found = [f"hydra.searchpath=[file://{tmp_path}]", "+experiment=mine,long"]
        master = loader.load_configuration("config", found, run_mode=RunMode.MULTIRUN)
        compose.compose_sweep(loader, master, found[1:])


def test_a_cell_that_fails_names_its_patches_as_others_do(loader):
    found = sweep_of(loader, "builder=9.9.9,0.14.1", "suspects=[rope_fix,embed_scale_exact]")
    assert [cell.failure is None for cell in found] == [False] * 4 + [True] * 4
    assert [cell.factors["patch"] for cell in found[:4]] == [cell.factors["patch"] for cell in found[4:]]
