"""Environments by name."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import pytest

from agentfly_lib.envs import registry
from agentfly_lib.envs.environment import EnvironmentKind
from agentfly_lib.envs.registry import environment_names, get_environment, read_settings, reference_of
from agentfly_lib.errors import ConfigError


@pytest.fixture
def installed(monkeypatch):
    """Pretends that a package has these entry points."""

    def install(**points: str) -> None:
        found = [EntryPoint(name=name, value=value, group=registry.ENTRY_POINTS) for name, value in points.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.ENTRY_POINTS else [])
        registry._installed.cache_clear()

    yield install
    monkeypatch.undo()
    registry._installed.cache_clear()


@pytest.mark.parametrize("name", sorted(registry.SHIPPED_ENVIRONMENTS))
def test_every_shipped_one_is_found_without_its_packages(name: str, monkeypatch) -> None:
    for package in ("alfworld", "textworld", "scienceworld", "reasoning_gym", "miniwob", "selenium", "bfcl_eval"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    kind = get_environment(name)
    assert kind.name == name
    assert kind.prompt.strip()
    assert reference_of(kind) == name


def test_one_of_a_package_is_found_by_its_entry_point(installed, odd) -> None:
    installed(odd="odd_environments:KIND", chess="odd_environments:KIND")
    assert get_environment("odd") is odd.KIND
    assert "odd" in environment_names()
    assert reference_of(odd.KIND) == "odd"
    assert get_environment("chess").name == "chess"  # a name of ours is ours


def test_one_of_the_users_own_is_found_by_its_module(odd) -> None:
    assert get_environment("odd_environments:KIND") is odd.KIND
    assert reference_of(odd.KIND) == "odd_environments:KIND"
    assert reference_of(odd.IMPATIENT) == "odd_environments:IMPATIENT"


def test_one_that_no_other_process_can_find_is_refused(odd) -> None:
    with pytest.raises(ConfigError, match='place="thread"'):
        reference_of(odd.kind())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("webshpo", "unknown environment 'webshpo': did you mean 'webshop'"),
        ("zzz", "unknown environment 'zzz': there are: alfworld, "),
        ("nowhere.at.all:KIND", "cannot import nowhere.at.all: ModuleNotFoundError"),
        ("odd_environments:LOST", "odd_environments has no LOST"),
        ("odd_environments:Odd", "'odd_environments:Odd' is a type; name a constant that is an EnvironmentKind"),
        ("broken_environment:KIND", "ZeroDivisionError"),
    ],
)
def test_a_name_that_leads_nowhere_says_so(odd, tmp_path, monkeypatch, name: str, message: str) -> None:
    (tmp_path / "broken_environment.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        get_environment(name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modo": "x"}, "environment 'odd': unknown key agent.environment.settings.modo: did you mean mood"),
        ({"zzz": "x"}, "unknown key agent.environment.settings.zzz: valid keys: mood, start_code"),
        ({"mood": 3}, "agent.environment.settings.mood = 3: Input should be a valid string"),
    ],
)
def test_settings_that_do_not_fit_are_named(odd, values, message) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(odd.KIND, values, where="agent.environment.settings")


def test_kinds_are_told_apart_by_what_they_are_not_by_their_fields(odd) -> None:
    assert odd.kind() != odd.kind()
    assert isinstance(types.MappingProxyType({odd.KIND: 1})[odd.KIND], int)
    assert isinstance(odd.KIND, EnvironmentKind)
