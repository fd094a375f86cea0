"""What a module says, whatever it looks like: its syntax tree without what cannot change a number.

Left out: comments, docstrings, annotations, layout, the texts of errors, hints and prints, and from which of the
project's own modules a name is imported. What a module defines is a set, since neither the order of functions nor the
file that they stand in changes what they do.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

# Fields of nodes that say nothing of what is computed, or not the same in every version of Python.
SILENT = {"ctx", "kind", "type_comment", "type_ignores", "returns", "annotation", "type_params"}
# A keyword that carries a text for people.
TEXT = "hint"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BLANK = ["Text"]


@dataclass(frozen=True)
class Module:
    """A module's statements as hashes.

    defined: of each name that it defines once, at its top; rest: of all other
    statements together, in their order. own: the project's modules that it
    imports. taken: (module, name) of what it imports from them.
    """

    defined: dict[str, str]
    rest: str
    own: tuple[str, ...]
    taken: tuple[tuple[str, str], ...]


@cache
def module_of(source: str, own: frozenset[str]) -> Module:
    """What `source` says. own: the names of the project's modules beside it. Errors: SyntaxError."""
    tree = ast.parse(source)
    defined, rest = {}, []
    body = [node for node in kept(tree.body, own)]
    names = Counter(name for node in body for name in names_of(node))
    for node in body:
        found = names_of(node)
        if len(found) == 1 and names[found[0]] == 1:
            defined[found[0]] = hash_of(shape(node, own))
        else:
            rest.append(node)
    # Of imports neither the order nor the line says anything.
    imports = sorted({(*origin(node), *name) for node in rest if is_import(node) for name in aliases(node)})
    others = [shape(node, own) for node in rest if not is_import(node)]
    imported, taken = own_imports(tree, own)
    return Module(defined, hash_of([imports, others]), tuple(sorted(imported)), tuple(sorted(taken)))


def digest_of(root: str, modules: dict[str, Module]) -> str:
    """Hash of what the module `root` does, with all that it imports; `modules` has it and these, by name."""
    definers = Counter(name for module in modules.values() for name in module.defined)
    said = {("root", root)}
    for place, module in modules.items():
        said.add(("rest", module.rest))
        # A name that two modules define is told by its module.
        said |= {(f"{place}." * (definers[n] > 1) + n, shown) for n, shown in module.defined.items()}
        plain = {(source, n) for source, n in module.taken if definers[n] == 1 and n in modules[source].defined}
        said |= {(place, f"{source}.{n}") for source, n in set(module.taken) - plain}
    return hash_of(sorted(said))


def hash_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def names_of(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines, where that is plain to see."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    # Those of a tuple count as well: what is set twice is not told by its name alone.
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def is_import(node: object) -> TypeGuard[ast.Import | ast.ImportFrom]:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def origin(node: ast.Import | ast.ImportFrom) -> tuple[str, ...]:
    """From where names are imported; nothing of a plain import."""
    return ("." * node.level + (node.module or ""),) if isinstance(node, ast.ImportFrom) else ()


def aliases(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """The names that are imported, each with what it is called here."""
    return sorted((alias.name, alias.asname or alias.name) for alias in node.names)


def own_imports(tree: ast.AST, own: frozenset[str]) -> tuple[set[str], set[tuple[str, str]]]:
    """The project's modules that are imported anywhere in a tree, and what is taken from them by name.

    A module that imports by `importlib.import_module` imports each whose name stands in it.
    """
    imported, taken, dynamic = set(), set(), False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in own:
            imported.add(node.module)
            taken |= {(node.module, alias.name) for alias in node.names}
        dynamic |= getattr(node, "attr", getattr(node, "id", None)) == "import_module"
    if dynamic:
        imported |= {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return imported & own, taken


def kept(body: list[ast.stmt], own: frozenset[str]) -> Iterator[ast.stmt]:
    """The statements of a body that do something."""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring, or an ellipsis
        if isinstance(node, ast.Pass):
            continue
        if is_import(node) and all(alias.asname is None for alias in node.names):
            sources = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if all(source in own or source == "__future__" for source in sources):
                continue
        yield node


def shape(node: object, own: frozenset[str], silent: bool = False) -> object:
    """A node as nested lists. silent: it is the text of a message, where strings say nothing."""
    if isinstance(node, list):
        nodes = kept(node, own) if node and isinstance(node[0], ast.stmt) else node
        return [shape(item, own, silent) for item in nodes]
    if not isinstance(node, ast.AST):
        return node if isinstance(node, str) else repr(node)
    if silent and is_text(node):
        return BLANK
    if isinstance(node, ast.Constant):
        return ["Constant", type(node.value).__name__, repr(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", pieces(node, own)]
    if is_import(node):
        return ["Import", [] if getattr(node, "module", None) in own else origin(node), aliases(node)]
    if isinstance(node, ast.Raise):
        return ["Raise", raised(node.exc, own), shape(node.cause, own)]
    if isinstance(node, ast.Assert):
        return ["Assert", shape(node.test, own)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        keywords = [shape(keyword, own) for keyword in node.keywords]
        return ["Call", "print", [shape(argument, own, True) for argument in node.args], keywords]
    if isinstance(node, ast.keyword) and node.arg == TEXT:
        return ["keyword", node.arg, shape(node.value, own, True)]
    fields = [(name, shape(value, own, silent)) for name, value in ast.iter_fields(node) if name not in SILENT]
    return [type(node).__name__, [(name, value) for name, value in fields if value not in ([], "None")]]


def is_text(node: ast.AST) -> bool:
    """Whether a node is a string, or strings put together."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return is_text(node.left) and is_text(node.right)
    return isinstance(node, ast.JoinedStr)


def raised(error: ast.expr | None, own: frozenset[str]) -> object:
    """What is raised, its message left out: the first argument. The others may be looked at, such as a kind."""
    if not isinstance(error, ast.Call):
        return shape(error, own)
    first = [shape(argument, own, True) for argument in error.args[:1]]
    others = [shape(argument, own) for argument in error.args[1:]]
    return [shape(error.func, own), first, others, [shape(keyword, own) for keyword in error.keywords]]


def pieces(node: ast.JoinedStr, own: frozenset[str]) -> list:
    """The parts of an f-string; texts side by side are one, however the version of Python divides them."""
    parts: list = []
    for value in node.values:
        text = value.value if isinstance(value, ast.Constant) else None
        if text is None:
            parts.append(shape(value, own))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += text
        elif text:
            parts.append(text)
    return parts
