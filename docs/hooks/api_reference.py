"""The API's reference as Markdown for mkdocstrings: pages by subject, and on each the public names of some modules.

What is public is what a module lists in `__all__`; the docstrings are read from the source, nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ApiPage", "api_index", "public_modules", "public_names", "source_of"]

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPage:
    """A page of the reference."""

    name: str
    title: str
    about: str
    modules: tuple[str, ...]
    """Modules, or packages: of a package without an `__all__` of its own, all its modules."""

    @property
    def path(self) -> str:
        return f"reference/api/{self.name}.md"

    def markdown(self) -> str:
        parts = [f"# {self.title}", self.about]
        for module in (each for root in self.modules for each in public_modules(root)):
            names = public_names(module)
            members = "\n".join(f"        - {name}" for name in names)
            parts.append(f"## {module} {{ #{module}-module }}")
            parts.append(
                f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
                f"      members:\n{members}"
            )
        return "\n\n".join(parts) + "\n"


_SUBJECTS = (
    ApiPage(
        name="types",
        title="Types",
        about="What a rollout is made of, what passes between stages, and what can go wrong.",
        modules=("agentfly_lib.types", "agentfly_lib.refs", "agentfly_lib.errors"),
    ),
    ApiPage(name="agents", title="Agents", about="See [Agents](../../agents.md).", modules=("agentfly_lib.agents",)),
    ApiPage(name="tools", title="Tools", about="See [Tools](../../tools.md).", modules=("agentfly_lib.tools",)),
    ApiPage(
        name="rewards", title="Rewards", about="See [Rewards](../../rewards.md).", modules=("agentfly_lib.rewards",)
    ),
    ApiPage(
        name="environments",
        title="Environments",
        about="See [Environments](../../environments.md).",
        modules=("agentfly_lib.envs", "agentfly_lib.envs.as_gymnasium"),
    ),
    ApiPage(
        name="resources",
        title="Resources",
        about="See [Resources](../../resources.md).",
        modules=("agentfly_lib.resources",),
    ),
    ApiPage(name="chat", title="Chat", about="See [Chat](../../chat.md).", modules=("agentfly_lib.chat",)),
    ApiPage(
        name="inference",
        title="Engines",
        about="What generates tokens: vLLM, transformers, a server, a script.",
        modules=("agentfly_lib.inference",),
    ),
    ApiPage(
        name="rollout",
        title="Rollouts",
        about="From a problem to trajectories: chains, groups, and a whole step of them.",
        modules=("agentfly_lib.rollout",),
    ),
    ApiPage(
        name="training",
        title="Training",
        about="From scored trajectories to new weights. [Algorithms](../../algorithms.md) explains the choices.",
        modules=("agentfly_lib.training.advantages", "agentfly_lib.training"),
    ),
    ApiPage(
        name="store",
        title="Store",
        about="Shards, scores, manifests and the ledger. See [Data format](../../data.md).",
        modules=("agentfly_lib.store",),
    ),
    ApiPage(
        name="data",
        title="Data",
        about="Problems: where they come from, how they are split and ordered.",
        modules=("agentfly_lib.data",),
    ),
    ApiPage(
        name="configs",
        title="Configs",
        about="The classes behind recipes. [Recipes](../recipes.md) says the same by key.",
        modules=("agentfly_lib.configs",),
    ),
    ApiPage(
        name="evaluation",
        title="Evaluation",
        about="Held-out rewards, their intervals, and runs against each other.",
        modules=("agentfly_lib.evaluation",),
    ),
    ApiPage(
        name="planning",
        title="Planning",
        about="Who runs where, and whether it fits: what `agentfly plan` prints.",
        modules=("agentfly_lib.planning",),
    ),
)


def _others() -> tuple[str, ...]:
    """Packages with public names that no page above has."""
    shown = {module for page in _SUBJECTS for module in page.modules}
    packages = sorted(path.parent.name for path in (REPOSITORY / "agentfly_lib").glob("*/__init__.py"))
    found = (f"agentfly_lib.{name}" for name in packages)
    return tuple(name for name in found if name not in shown and public_names(name))


def api_index() -> str:
    """The page that lists the others."""
    rows = [f"| [{page.title}]({page.name}.md) | {_modules(page)} |" for page in PAGES]
    head = "# API\n\nEverything public, from the docstrings. What stands in no `__all__` may change without notice.\n\n"
    return head + "\n".join(["| | modules |", "| --- | --- |", *rows]) + "\n"


def _modules(page: ApiPage) -> str:
    return ", ".join(f"`{module}`" for module in page.modules)


def public_modules(root: str) -> Iterator[str]:
    """The module itself if it has an `__all__`, else those of its folder."""
    if public_names(root):
        yield root
        return
    for path in sorted(source_of(root).parent.glob("*.py")):
        module = f"{root}.{path.stem}"
        if path.stem != "__init__" and public_names(module):
            yield module


def public_names(module: str) -> list[str]:
    """`__all__` of a module, read from its source; none if it has none."""
    for statement in ast.parse(source_of(module).read_text()).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            return list(ast.literal_eval(statement.value))
    return []


def source_of(module: str) -> Path:
    """The file that says what a module's names are: of a package that loads them at their first use, its stub."""
    path = REPOSITORY.joinpath(*module.split("."))
    if not path.is_dir():
        return path.with_suffix(".py")
    stub = path / "__init__.pyi"
    return stub if stub.exists() else path / "__init__.py"


PAGES = (
    *_SUBJECTS,
    *(
        ApiPage(name="others", title="Others", about="What stands beside all this.", modules=others)
        for others in [_others()]
        if others
    ),
)
"""In the order of the table of contents."""
