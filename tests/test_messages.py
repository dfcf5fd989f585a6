"""`docs/howto/messages.md` has an entry for every message that the package can give.

A message is what an error, a warning, a log record, a check of a chain or a line of a report is
made with, as it stands in the source, with "…" for its parts that vary. An entry is code in the
first cell of a table: the beginning of its messages. Messages of fewer than nine letters of their
own pass on what somebody else said and have none, nor have exceptions that the package raises for
itself and what developers of integrators are told.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "howto" / "messages.md").read_text()
SOURCES = {path: ast.parse(path.read_text()) for path in (ROOT / "pymc_subsample").rglob("*.py")}
# Which argument of a call is told; of everything else whose name ends in "Error", the first.
TOLD = {
    "warn": 0, "info": 0, "warning": 0, "check": 1, "Rule": 1, "Notice": 1, "Finding": 1,
    "__init__": 0,  # of an error, by its class
}  # fmt: skip
WITHIN = {"PicklingError", "AssertionError", "AttributeError", "NotImplementedError"}
LEAST = 9
PACKAGE = ROOT / "pymc_subsample"
APART = {
    PACKAGE / "chain" / "method.py",
    PACKAGE / "chain" / "sampler.py",
    PACKAGE / "compiled" / "keys.py",
    PACKAGE / "samplers" / "gradients" / "integrators" / "integrator.py",
    PACKAGE / "samplers" / "registry.py",
}


def letters(said: str) -> int:
    return len(re.sub("[^a-z]", "", said.lower()))


@cache
def assigned(name: str, tree: ast.Module) -> list[ast.expr]:
    """Return what a name is assigned in a module, or in the one that it is imported from."""
    own, homes = names(tree)
    return own.get(name, []) + [
        found
        for home in homes.get(name, [])
        if home in SOURCES
        for found in assigned(name, SOURCES[home])
    ]


@cache
def names(tree: ast.Module) -> tuple[dict[str, list[ast.expr]], dict[str, list[Path]]]:
    """Return by name what is assigned in a module, and where names are imported from."""
    own, homes = defaultdict(list), defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for name in {ast.unparse(target) for target in node.targets}:
                own[name].append(node.value)
        if isinstance(node, ast.For):
            own[ast.unparse(node.target)].append(node.iter)
        if isinstance(node, ast.ImportFrom):
            home = (ROOT / (node.module or "").replace(".", "/")).with_suffix(".py")
            for alias in node.names:
                homes[alias.name].append(home)
    return own, homes


@cache
def returned() -> dict[str, list[tuple[ast.expr, ast.Module]]]:
    """Return by name what functions return, anywhere."""
    result = defaultdict(list)
    for tree in SOURCES.values():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            result[node.name] += [
                (found.value, tree)
                for found in ast.walk(node)
                if isinstance(found, ast.Return) and found.value is not None
            ]
    return result


def texts(node: ast.expr, tree: ast.Module, deep: int = 2) -> list[str]:
    """Return what an expression may say, "…" for the parts that vary."""
    match node:
        case ast.Constant(value=str(said)):
            return [re.sub(r"%(\.\d)?[srdfg]|\{\w+(=\w+)?\}", "…", said)]
        case ast.JoinedStr(values=parts):
            options = []
            for part in parts:  # what has a name of its own in the module is as good as its text
                inner = part.value if isinstance(part, ast.FormattedValue) else part
                [known, *others] = assigned(ast.unparse(inner), tree) or [inner]
                fixed = isinstance(known, ast.Constant | ast.JoinedStr) and not others
                options.append(texts(known, tree)[:1] if fixed else ["…"])
            if letters("".join(one[0] for one in options)) < LEAST and deep:
                for k, part in enumerate(parts):
                    if isinstance(getattr(part, "value", None), ast.Call):
                        options[k] = texts(part.value, tree, deep)
            return ["".join(said) for said in product(*options)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in texts(left, tree, deep) for b in texts(right, tree, 0)]
        case ast.IfExp(body=one, orelse=other):
            return texts(one, tree, deep) + texts(other, tree, deep)
        case ast.Name(id=name) if deep:
            found = [said for x in assigned(name, tree) for said in texts(x, tree, deep - 1)]
        case ast.ListComp(elt=said):
            return texts(said, tree, deep + 1)
        case ast.Call(func=ast.Attribute(value=said, attr="format")):
            return texts(said, tree, deep)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if deep:
            found = [
                said for x, home in returned().get(name, []) for said in texts(x, home, deep - 1)
            ]
        case _:
            found = []
    return [said for said in found if said.strip("…")] or ["…"]


def messages() -> Iterator[tuple[str, str]]:
    """Yield where a message is given, and what it says."""
    for path, tree in SOURCES.items():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(node.func).rsplit(".", 1)[-1]
            place = TOLD.get(name, 0 if name.endswith("Error") else None)
            titles = [k.value for k in node.keywords if k.arg == "title" and name == "replace"]
            if name in WITHIN or path in APART or (place is None and not titles):
                continue
            at = titles or node.args[place:][:1] if name != "OSError" else node.args[-1:]
            for said in (said for told in at for said in texts(told, tree)):
                if letters(said) >= LEAST and not (titles and said.startswith("…")):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", re.sub("…+", "…", said)


def entries() -> list[str]:
    cells = re.findall(r"^\| (`.+?) \|", PAGE, flags=re.MULTILINE)
    return [entry for cell in cells for entry in re.findall("`(.+?)`", cell)]


def begins(message: str, entry: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in entry.removesuffix(" …").split("…"))
    return re.match(pattern, message, flags=re.DOTALL) is not None


@pytest.mark.costly
def test_every_message_has_an_entry():
    known = entries()
    missing = [
        f"{place}: {said}"
        for place, said in messages()
        if not any(begins(said, entry) for entry in known)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.costly(cases=0)
def test_every_entry_is_a_message():
    said = [message for _, message in messages()]
    for entry in entries():
        assert letters(entry) >= LEAST, entry
        assert any(begins(message, entry) for message in said), entry


def test_every_table_has_a_head():
    """A line that is empty ends a table: the rows below are shown as text."""
    lines = ["", *PAGE.splitlines(), ""]
    for k, (before, line) in enumerate(pairwise(lines)):
        if line.startswith("|") and not before.startswith("|"):
            assert re.fullmatch(r"\|(---\|)+", lines[k + 2]), line


def test_a_new_message_is_missed():
    source = ast.parse('f"{name} is not what anybody expected" + " here."')
    [made] = texts(source.body[0].value, source)
    assert made == "… is not what anybody expected here."
    assert not any(begins(made, entry) for entry in entries())
