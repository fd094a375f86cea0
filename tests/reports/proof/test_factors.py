"""A proof of a factor: which cells count for it, what confounds them, and the command that decides: on databases made
by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rows import changed, environment, ok, prompt, store
from typer.testing import CliRunner

from db import engine as database
from db import query
from db.artifacts import PromptInput
from reports import proof
from reports.__main__ import app

FLOOR = 0.5
SHAPE = {"model": "m", "builder": "1", "patch": "none", "backend": "genai", "options": ""}
NEW = {"transformers": "5.13.0", "torch": "2.13.0+cpu", "onnxruntime-genai": "0.18.0", "huggingface-hub": "1.33.0"}
OLD = NEW | {"transformers": "4.57.6", "huggingface-hub": "0.36.2"}


@pytest.fixture
def lab(tmp_path):
    """(store a cell, the designs there are of a factor, the database's engine)."""
    path = str(tmp_path / "x.db")
    engine = database.open_database(path)

    def add(multiple, right=True, environments=None, made=None, values=None, **factors: str) -> int:
        verdict = "within_noise" if multiple <= 10 else "broken"
        numbers = prompt("p", multiple * FLOOR, multiple * FLOOR, identical=right)
        numbers |= {"verdict": verdict, "candidate_sensible": right}
        result = ok(numbers, hash=f"{multiple}{right}{factors}{environments}")
        more = {
            "thresholds": {"within": 10.0, "broken": 1000.0},
            "checkpoint_hash": "c",
            "noise_key": "n",
            "prompts_key": "j",
        }
        roles = {role: environment(**packages) for role, packages in (environments or {}).items()}
        result = replace(
            result,
            values={**result.values, **more, **(values or {})},
            environments={role: environment(**NEW) for role in ("builder", "runtime", "reference")} | roles,
        )
        return store(engine, SHAPE | factors, made or changed(), result)

    def designs(factor, baseline=None, **filters):
        return proof.collect(path, {"model": ["m"], **filters}, factor=factor, baseline=baseline)["designs"]

    return add, designs, engine


def words(design: dict) -> dict[str, str]:
    return {verdict["change"]: verdict["word"] for verdict in design["verdicts"]}


def test_a_reference_that_differs_in_transformers_alone_is_proven_the_cause(lab):
    add, designs, _ = lab
    add(500, reference="5.13.0")
    add(2, reference="4.57.6", environments={"reference": OLD}, values={"noise_key": "other"})
    (design,) = designs("reference")
    assert design["baseline"] == "5.13.0" and words(design) == {"4.57.6": "proven"}
    (verdict,) = design["verdicts"]
    assert "reference's transformers (5.13.0 / 4.57.6)" in verdict["changed"] and verdict["confounders"] == []
    assert verdict["along"] == ["reference's huggingface-hub (1.33.0 / 0.36.2)"]
    text = proof.markdown({"factor": "reference", "designs": [design]})
    assert "The baseline is reference 5.13.0" in text and "multiples of its own reference's noise floor" in text
    assert "Changed along, and computing none of these numbers: reference's huggingface-hub" in text


def test_a_reference_that_differs_in_torch_too_is_confounded_and_the_cross_is_a_command(lab):
    add, designs, _ = lab
    add(500, reference="5.13.0")
    add(2, reference="4.57.6", environments={"reference": OLD | {"torch": "2.12.0"}})
    (design,) = designs("reference")
    (verdict,) = design["verdicts"]
    assert verdict["word"] == "confounded"
    assert verdict["confounders"] == ["reference's torch (2.13.0+cpu / 2.12.0)"]
    assert verdict["command"] == "python -m runner -m 'reference.environment.extra=[\"torch==2.13.0\"]'"


def test_the_command_of_a_cross_keeps_what_was_asked_of_its_insides(lab):
    add, designs, _ = lab
    add(500, reference="5.13.0")
    inside = "reference.environment.transformers=4.57.6"
    add(2, reference="5.13.0", options=inside, environments={"reference": OLD | {"torch": "2.12.0"}})
    (design,) = designs("reference")
    assert words(design) == {f"5.13.0 {inside}": "confounded"}
    (command,) = [verdict["command"] for verdict in design["verdicts"]]
    assert inside in command and command.endswith("'reference.environment.extra=[\"torch==2.13.0\"]'")


def test_prompts_that_came_out_as_the_same_ids_are_the_same(lab):
    add, designs, engine = lab
    for key, ids in (("k1", [1, 2]), ("k2", [1, 2]), ("k3", [1, 3])):
        with database.writing(engine) as session:
            session.add(PromptInput(prompts_key=key, position=0, prompt="p", text="t", ids=ids))
    tokenizers = OLD | {"tokenizers": "0.21"}
    add(500, reference="a", environments={"reference": NEW | {"tokenizers": "0.22"}}, values={"prompts_key": "k1"})
    add(2, reference="b", environments={"reference": tokenizers}, values={"prompts_key": "k2"})
    add(2, reference="c", environments={"reference": tokenizers}, values={"prompts_key": "k3"})
    (design,) = designs("reference")
    assert words(design) == {"b": "proven", "c": "confounded"}
    assert "the prompts' token ids" in design["verdicts"][1]["confounders"]


def test_a_builder_that_came_with_another_transformers_is_confounded_until_the_cross_has_run(lab):
    add, designs, _ = lab
    old = {"builder": OLD | {"onnxruntime-genai": "0.14.1"}}
    add(500, builder="0.18.0", made=changed(source_tree="new"))
    add(2, builder="0.14.1", made=changed(source_tree="old"), environments=old)
    (design,) = designs("builder")
    (verdict,) = design["verdicts"]
    assert verdict["word"] == "confounded"
    assert verdict["confounders"] == ["builder's transformers (5.13.0 / 4.57.6)"]
    assert verdict["command"].endswith("builder.transformers=5.13.0")
    text = proof.markdown({"factor": "builder", "designs": [design]})
    assert "what decides between them is `python -m runner" in text
    crossed = {"builder": NEW | {"onnxruntime-genai": "0.14.1"}}
    option = "builder.transformers=5.13.0"
    add(490, builder="0.14.1", made=changed(source_tree="old"), environments=crossed, options=option)
    (design,) = designs("builder")
    assert words(design) == {"0.14.1": "confounded", f"0.14.1 {option}": "no effect"}
    # With the builder held, its transformers is the only thing that changed.
    (old_one,) = designs("builder", baseline=f"0.14.1 {option}")
    assert words(old_one)["0.14.1"] == "proven"


@pytest.mark.parametrize(
    ("factor", "values", "more"),
    [
        ("dtype", ("bf16", "fp32"), {"checkpoint_hash": "d", "files_dtype": "fp32", "noise_key": "o"}),
        ("precision", ("fp32", "int4"), {"thresholds": {"within": 3.0, "broken": 10.0}, "noise_key": "o"}),
        ("layers", ("2", "all"), {"checkpoint_hash": "d", "layer_count": 7, "noise_key": "o"}),
        ("threads", ("1", "2"), {"noise_key": "o"}),
        ("options", ("backend.attention=eager", "backend.attention=sdpa"), {}),
        ("max_new_tokens", ("5", "20"), {}),
        ("prompts", ("one", "two"), {"prompts_key": "k", "noise_key": "o"}),
    ],
)
def test_what_follows_from_a_factor_is_the_factor(lab, factor, values, more):
    add, designs, _ = lab
    add(500, **{factor: values[0]})
    add(2, values=more, **{factor: values[1]})
    (design,) = designs(factor)
    assert design["baseline"] == values[0] and words(design) == {values[1]: "proven"}
    assert f"{factor}, beside {values[0]}" in proof.markdown({"factor": factor, "designs": [design]})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"environments": {"builder": OLD}}, "builder's transformers"),
        ({"values": {"stand_in": "fake"}}, "stand-in"),
        ({"made": changed("a")}, "change a"),
    ],
)
def test_what_does_not_follow_is_a_confounder(lab, more, said):
    add, designs, _ = lab
    add(500, dtype="bf16")
    add(2, dtype="fp32", **more)
    (design,) = designs("dtype")
    assert words(design) == {"fp32": "confounded"} and said in design["verdicts"][0]["why"]
    assert design["verdicts"][0]["command"] == ""  # no pin of its own would decide


def test_the_baseline_may_be_named_and_a_value_can_be_worse(lab):
    add, designs, _ = lab
    add(500, dtype="bf16")
    add(2, dtype="fp32")
    (design,) = designs("dtype", baseline="fp32")
    assert words(design) == {"bf16": "makes it worse"}


def test_a_cell_that_another_group_has_and_this_one_lacks_is_a_command(lab):
    add, designs, _ = lab
    for builder in ("1", "2"):
        add(500, dtype="bf16", builder=builder)
        add(2, dtype="fp32", builder=builder)
    add(2, dtype="fp16", builder="2")
    one, two = sorted(designs("dtype"), key=lambda design: design["object"]["builder"])
    assert words(two) == {"fp32": "proven", "fp16": "proven"}
    assert words(one) == {"fp32": "proven", "fp16": "not enough cells"}
    command = next(verdict["command"] for verdict in one["verdicts"] if verdict["change"] == "fp16")
    assert command.endswith("dtype=fp16")


def test_cells_that_never_differ_in_it_alone_are_confounded_with_the_command_of_the_one_that_would(lab):
    add, designs, _ = lab
    add(500, dtype="bf16", builder="1")
    add(2, dtype="fp32", builder="2")
    (design,) = designs("dtype")
    (verdict,) = design["verdicts"]
    assert verdict["word"] == "confounded" and "builder (1 / 2)" in verdict["why"]
    assert verdict["command"].endswith("dtype=fp32")


def test_a_value_of_which_nothing_is_known_is_said_to_be_that(lab):
    add, designs, engine = lab
    add(500, dtype="bf16")
    store(engine, SHAPE | {"dtype": "fp32"}, changed(), ok(hash="f", status="timeout", error="e", final=False))
    (design,) = designs("dtype")
    (verdict,) = design["verdicts"]
    assert verdict["word"] == "not enough cells" and "timeout" in verdict["why"]
    assert verdict["command"].startswith("python -m runner")


def test_no_design_says_what_to_run(lab):
    add, designs, _ = lab
    add(500)
    assert designs("dtype") == []
    assert "dtype=A,B" in proof.markdown({"factor": "dtype", "designs": []})


def test_a_baseline_that_no_cell_has_is_refused_with_those_there_are(lab):
    add, designs, _ = lab
    add(500, dtype="bf16")
    add(2, dtype="fp32")
    with pytest.raises(query.NotInDatabase, match="--baseline fp61: there is none; there are: bf16, fp32"):
        designs("dtype", baseline="fp61")
    done = CliRunner().invoke(app, ["proof", "--baseline", "none"])
    assert done.exit_code == 2 and "--factor" in done.output
