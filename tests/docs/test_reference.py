"""What the reference says is what the code has: every key of every recipe, every command, every public name."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from agentfly_lib.store.scores import SCORES
from agentfly_lib.store.shards import ROLLOUTS
from docs.hooks.api_reference import PAGES, public_modules, public_names, source_of
from docs.hooks.command_reference import command_reference, commands
from docs.hooks.recipe_reference import key_anchors, recipe_reference
from tests.docs.pages import REPOSITORY

RECIPES = sorted((REPOSITORY / "recipes").glob("*.toml"))
FREE = ("settings", "tool_settings", "options", "logit_bias")
"""Tables whose keys are a tool's, a reward's, an environment's or an agent's own."""


@pytest.fixture(scope="module")
def reference() -> str:
    return recipe_reference(RECIPES)


def keys_of(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = prefix + key
        if key in FREE or path.endswith("mcp_servers.env"):
            yield path
        elif isinstance(value, dict):
            yield from keys_of(value, f"{path}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                yield from keys_of(each, f"{path}.")
        else:
            yield path


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_key_of_every_recipe_is_explained(recipe, reference):
    explained = key_anchors(reference)
    values = tomllib.loads(recipe.read_text())
    missing = [key for key in keys_of(values) if key not in explained and not key.endswith(".type")]
    assert missing == []


def test_keys_have_type_default_and_docstring(reference):
    (line,) = [line for line in reference.splitlines() if line.startswith("| `rollout.flush_seconds`")]
    assert line == (
        "| `rollout.flush_seconds`{ #rollout.flush_seconds } | number, > 0 | `0.1` | "
        "A finished group is on disk at most this much later. |"
    )
    assert "| `run.name`{ #run.name } | text | *required* |" in reference
    assert '### `data.type = "gsm8k"` { #data-gsm8k }' in reference


def test_anchors_are_unique(reference):
    anchors = [part.split(" }")[0] for part in reference.split("{ #")[1:]]
    assert len(anchors) == len(set(anchors)) > 150


def test_every_command_is_explained():
    page = command_reference()
    names = [name for name, _ in commands()]
    assert "agentfly train" in names
    assert "agentfly config check" in names
    assert all(f"## {name} {{" in page for name in names)
    assert "| `--gpu-memory-gib` |" in page
    undocumented = [name for name, command in commands() if not command.help]
    assert undocumented == []


MODULES = [module for page in PAGES for root in page.modules for module in public_modules(root)]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module):
    """Where it is defined; a constant's is the text after it."""
    bare = [name for name in public_names(module) if not documented(module, name)]
    assert bare == [], f"{module}: give them a docstring"


def test_every_package_with_public_names_has_a_page():
    packages = {
        f"agentfly_lib.{path.parent.name}"
        for path in (REPOSITORY / "agentfly_lib").glob("*/__init__.py")
        if public_names(f"agentfly_lib.{path.parent.name}")
    }
    shown = {root for page in PAGES for root in page.modules}
    assert packages - shown == set()


def documented(module: str, name: str) -> bool:
    body = parsed(module)
    for index, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            overloaded = any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)
            if not overloaded:
                return bool(ast.get_docstring(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                after = body[index + 1] if index + 1 < len(body) else None
                text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                return bool(text) or speaks_for_itself(node)
        elif isinstance(node, ast.ImportFrom) and node.module:
            source = f"{module}.{node.module}" if node.level else node.module  # relative in a package's stub alone
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return documented(source, alias.name) or is_module(f"{source}.{alias.name}")
    return False


def speaks_for_itself(node: ast.AST) -> bool:
    """`X = Annotated[A | B, Field(discriminator="type")]`: its docstrings are those of the variants."""
    value = getattr(node, "value", None)
    return isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Annotated"


def is_module(name: str) -> bool:
    return REPOSITORY.joinpath(*name.split(".")).with_suffix(".py").exists()


def parsed(module: str) -> list[ast.stmt]:
    return ast.parse(source_of(module).read_text()).body


@pytest.mark.parametrize(("title", "kind"), [("## Rollouts", ROLLOUTS), ("## Scores", SCORES)])
def test_the_data_format_names_every_column(title, kind):
    page = (REPOSITORY / "docs" / "data.md").read_text()
    table = page.split(title)[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(named) == sorted(kind.schema.names)
    versions = page.split("## Versions")[1]
    assert f"| {ROLLOUTS.version} |" in versions
