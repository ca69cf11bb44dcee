"""What the shell offers after a Tab: recipes, keys of recipes, run directories. Looks at names, and never fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["complete_keys", "complete_recipes", "complete_runs"]


def complete_recipes(incomplete: str) -> list[str]:
    """TOML files that begin so; of a folder that does, those in it, or its name where there are none."""
    return _paths(incomplete, lambda path: path.suffix == ".toml" and path.is_file(), home="recipes")


def complete_runs(incomplete: str) -> list[str]:
    """Run directories, in the same way."""
    return _paths(incomplete, lambda path: (path / "config.toml").is_file(), home="runs")


def complete_keys(incomplete: str) -> list[str]:
    """Keys of a recipe with what stands between them and their value: `optim.lr=`."""
    from agentfly_lib.configs.load import config_keys

    return [f"{key}=" for key in config_keys() if key.startswith(incomplete)]


def _paths(incomplete: str, wanted: Callable[[Path], bool], *, home: str) -> list[str]:
    folder, _, name = incomplete.rpartition("/")
    parent = Path(f"{folder}/") if "/" in incomplete else Path()
    found: list[str] = []
    for path in _inside(parent):
        if not path.name.startswith(name) or (path.name.startswith(".") and not name):
            continue
        if wanted(path):
            found.append(str(path))
        elif path.is_dir() and (incomplete or path.name == home):
            below = [str(each) for each in _inside(path) if wanted(each)]
            found += below or ([f"{path}/"] if incomplete else [])
    return sorted(found)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
