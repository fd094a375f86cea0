"""What changes a digest, and what does not."""

from __future__ import annotations

import ast
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner import paths, syntax

SOURCE = '''
"""What this module does."""

from __future__ import annotations

import json
import numpy as np
from numbers_of import largest, spread
from task import StageError

SCALE, LIMIT = 2.0, 8
NAMES = ("first", "second")


class Wide(Exception):
    """An error of its own."""

    most: int = 8


def run(arguments: dict, out: str) -> dict:
    """Run it."""
    values = np.asarray(arguments["values"]) * SCALE  # in fp64
    if len(values) > Wide.most:
        raise StageError(f"{len(values)} values", kind="TooMany", hint="give fewer")
    assert values.any(), "all are zero"
    for name in NAMES:
        print("looking at", name)
    return {"largest": largest(values), "said": f"of {len(values)}"}


if not NAMES:
    SCALE = 1.0
'''
NUMBERS = "def largest(values):\n    return values.max()\n\n\ndef spread(values):\n    return values.std()\n"
TASK = "class StageError(Exception):\n    pass\n"


def digest(source=SOURCE, numbers=NUMBERS, task=TASK, **others):
    files = {"stage": source, "numbers_of": numbers, "task": task, **others}
    own = frozenset(files)
    modules, open_ = {}, ["stage"]
    while open_:
        name = open_.pop()
        modules[name] = syntax.module_of(files[name], own)
        open_ += [other for other in modules[name].own if other not in modules]
    return syntax.digest_of("stage", modules)


def changed(before, after, **others):
    assert SOURCE.count(before) == 1, before
    return digest(SOURCE.replace(before, after), **others)


SAME = {
    "a comment": ("  # in fp64", "  # in fp32"),
    "a docstring": ('"""Run it."""', '"""Run it on a list of values."""'),
    "no docstring": ('    """An error of its own."""\n', ""),
    "a message": ('f"{len(values)} values"', 'f"too many values: {len(values)}, most {LIMIT}"'),
    "a message in two parts": ('f"{len(values)} values"', '"too many values, " + f"{len(values)}"'),
    "a hint": ("give fewer", "give fewer of them"),
    "an assertion's message": (', "all are zero"', ""),
    "a print": ('"looking at"', '"at"'),
    "an annotation": ("arguments: dict", "arguments: dict[str, list]"),
    "no annotation": (" -> dict:", ":"),
    "an import's order": ("import json\nimport numpy as np", "import numpy as np\nimport json"),
    "an import on two lines": ("largest, spread", "spread\nfrom numbers_of import largest"),
    "a line break": ("return {", "return {\n        "),
}
OTHER = {
    "a number": ("SCALE, LIMIT = 2.0", "SCALE, LIMIT = 2.5"),
    "a number's type": ("LIMIT = 2.0, 8", "LIMIT = 2.0, 8.0"),
    "an operator": ("* SCALE", "/ SCALE"),
    "a comparison": ("> Wide", ">= Wide"),
    "a default": ("most: int = 8", "most: int = 9"),
    "a string that is no message": ('"largest":', '"greatest":'),
    "a text that is a result": ('f"of {len', 'f"among {len'),
    "an error's kind": ("TooMany", "Many"),
    "another package": ("import numpy as np", "import torch as np"),
    "another name": ("import largest, spread", "import spread as largest"),
    "a statement less": ('    assert values.any(), "all are zero"\n', ""),
    "a condition": ("if not NAMES", "if NAMES"),
    "what is printed of": ('"looking at", name', '"looking at", name.pop()'),
}


@pytest.mark.parametrize("edit", SAME.values(), ids=SAME)
def test_what_changes_no_number_changes_no_digest(edit):
    assert changed(*edit) == digest()


@pytest.mark.parametrize("edit", OTHER.values(), ids=OTHER)
def test_what_may_change_a_number_does(edit):
    assert changed(*edit) != digest()


def test_what_is_imported_counts_and_what_is_not_does_not():
    assert digest(numbers=NUMBERS.replace("max", "min")) != digest()
    assert digest(numbers="import deeper\n" + NUMBERS, deeper="X = 1\n") != digest(
        numbers="import deeper\n" + NUMBERS, deeper="X = 2\n"
    )
    assert digest(unused="X = 1\n") == digest()


def test_a_function_that_moves_to_another_module_is_the_same():
    first, second = NUMBERS.split("\n\n\n")
    moved = SOURCE.replace("import largest, spread", "import largest\nfrom spreads import spread")
    assert digest(moved, numbers=first, spreads=second) == digest()


def test_of_two_functions_of_one_name_it_matters_which_is_taken():
    other = NUMBERS.replace("max", "min")
    both = SOURCE.replace("import json", "import others")
    taken = both.replace("from numbers_of", "from others")
    assert digest(both, others=other) != digest(taken.replace("import others", "import numbers_of"), others=other)


def test_a_module_imported_by_its_name_counts():
    source = SOURCE + '\nMAKERS = {"plain": "plain_maker"}\n\n\ndef make(kind):\n    import importlib\n'
    source += "    return importlib.import_module(MAKERS[kind])\n"
    assert digest(source, plain_maker="X = 1\n") != digest(source, plain_maker="X = 2\n")


@pytest.mark.parametrize("path", sorted(paths.WORKER.glob("*.py")), ids=lambda path: path.stem)
def test_the_workers_modules_keep_theirs_when_they_are_written_anew(path):
    """Without comments, blank lines, the layout that its author chose, and in another order."""
    source, own = path.read_text(encoding="utf-8"), frozenset(p.stem for p in paths.WORKER.glob("*.py"))
    tree = ast.parse(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    places = [index for index, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef)]
    for index, node in zip(places, random.Random(0).sample(functions, len(functions)), strict=True):
        tree.body[index] = node
    written = ast.unparse(tree)
    assert written != source
    assert syntax.module_of(written, own) == syntax.module_of(source, own)


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_any_other_number_in_a_module_of_the_worker_is_seen(data):
    tree = ast.parse((paths.WORKER / "metrics.py").read_text(encoding="utf-8"))
    before = syntax.module_of(ast.unparse(tree), frozenset())
    numbers = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    data.draw(st.sampled_from(numbers)).value += 1
    assert syntax.module_of(ast.unparse(tree), frozenset()) != before
