"""The layout: imports follow the flow, and no two modules import each other in a circle."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

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
    return graph


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
