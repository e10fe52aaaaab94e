"""The layout: imports follow the flow, and no two modules import each other in a circle.

An import counts wherever it stands, inside a function and by `import_module` too. A lazy table, at the top of a module,
of names to "module:attribute" is the one way up; code that asks such a table for a name of its own choice imports.
"""

from __future__ import annotations

import ast
import re
from ast import Constant
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
FLOW = [
    *("data", "formats", "planning", "envs", "encoders", "policies", "objectives", "agents", "rewards"),
    *("evaluation", "training", "cli"),
]


@cache
def imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, those inside functions included."""
    files = {file: ".".join(file.relative_to(SRC).with_suffix("").parts) for file in SRC.rglob("*.py")}
    known = {name.removesuffix(".__init__") for name in files.values()}
    graph: dict[str, set[str]] = {}
    for file, name in files.items():
        found = graph.setdefault(name.removesuffix(".__init__"), set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.update({f"{node.module}.{alias.name}" for alias in node.names} & known or {node.module} & known)
            elif isinstance(node, ast.Import):
                found.update({alias.name for alias in node.names} & known)
        found.update(called(ast.parse(file.read_text())) & known)
    return graph


def called(tree: ast.Module) -> set[str]:
    """Modules that code names without a statement: for `import_module`, or as a key of a lazy table."""
    tables: dict[str, dict[object, str]] = {}
    lazy = set[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            value, names = node.value, [ast.unparse(target) for target in node.targets]
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "LazyTable":
                value = next(part for part in value.args if isinstance(part, ast.Dict))
                lazy.update(names)
            if isinstance(value, ast.Dict):
                known: dict[object, str] = {}
                for key, entry in zip(value.keys, value.values, strict=True):
                    if isinstance(key, Constant) and isinstance(entry, Constant):
                        known[key.value] = str(entry.value)
                tables |= dict.fromkeys(names, known)
    found = set[str]()

    def entries(part: ast.AST) -> Iterator[str]:
        if isinstance(part, ast.Subscript) and isinstance(part.slice, Constant):
            yield tables.get(ast.unparse(part.value), {}).get(part.slice.value, "")

    for code in ast.walk(tree):
        if isinstance(code, ast.Subscript) and ast.unparse(code.value) in lazy:
            found.update(entries(code))
        elif isinstance(code, ast.Call) and ast.unparse(code.func).endswith("import_module"):
            for part in chain.from_iterable(map(ast.walk, code.args)):
                found.update(entries(part))
                if isinstance(part, Constant) and isinstance(part.value, str):
                    found.add(part.value)
    return {name.partition(":")[0] for name in found}


@pytest.mark.parametrize(
    "line",
    [
        'import_module("counterpoint.training.agent")',
        'importlib.import_module(KINDS["agent"].partition(":")[0]).adapted',
        'getattr(import_module(KINDS["agent"].split(":")[0]), "adapted")',
        'LAZY["agent"].adapted',
    ],
)
def test_an_import_by_name_counts(line: str) -> None:
    table = 'KINDS = {"agent": "counterpoint.training.agent:AgentRecipe"}\n'
    table += table.replace("KINDS = ", "LAZY = LazyTable('kind', ").replace("}", "})")
    assert "counterpoint.training.agent" in called(ast.parse(f"{table}def load():\n    return {line}"))
    assert not called(ast.parse(f"{table}def load(kind):\n    return import_module(KINDS[kind]), LAZY[kind]"))


def test_imports_follow_the_flow() -> None:
    up = []
    for module, targets in imports().items():
        room = [*module.split("."), ""][1]
        for target in targets:
            aim = [*target.split("."), ""][1]
            if room in FLOW and aim in FLOW and FLOW.index(aim) > FLOW.index(room):
                up.append(f"{module} -> {target}")
    assert not up


def test_no_circle_of_imports() -> None:
    graph, done, path = imports(), set[str](), list[str]()

    def visit(module: str) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for target in graph[module]:
                visit(target)
            path.pop()
            done.add(module)

    for module in graph.keys() - {"counterpoint"}:
        visit(module)


OWN_STREAMS = {
    "data/draws.py": "makes every stream from (seed, step, name)",
    "data/sampler.py": "keeps a loader from the global stream; nothing is drawn",
    "envs/base.py": "seeds simulators that sample from numpy's global stream",
    "envs/dmc/env.py": "seeds dm_control's own stream",
    "envs/robomimic.py": "seeds robosuite's own stream",
    "envs/goal/tasks.py": "seeds OGBench's own stream",
    "evaluation/report.py": "chooses what a page shows",
    "evaluation/compare.py": "chooses the frames of scenes",
    "evaluation/statistics.py": "resamples results",
    "agents/base.py": "initial weights",
    "encoders/convert.py": "initial weights",
    "rewards/sources.py": "initial weights",
    "training/agent.py": "initial weights",
    "training/clips.py": "initial weights",
    "training/cloning.py": "initial weights",
    "training/imitation.py": "initial weights",
    "training/transitions.py": "initial weights",
    "objectives/imitation.py": "scores every validation from one noise",
}
"""Files that make or seed a stream themselves, and why; all others ask `data.draws`."""


def test_chance_has_one_source() -> None:
    numpy = r"default_rng\([^)]|SeedSequence|Philox|RandomState|random\.seed\("
    makes = re.compile(numpy + r"|[( ]set_seed\(|Generator\(\)|manual_seed\(")
    derived = re.compile(r"(sample|initial)_seed\(")
    found = set()
    for file in (SRC / "counterpoint").rglob("*.py"):
        lines = [line.split("# ")[0] for line in file.read_text().splitlines()]
        if any(makes.search(line) and not derived.search(line) for line in lines):
            found.add(str(file.relative_to(SRC / "counterpoint")))
    assert found <= OWN_STREAMS.keys()
