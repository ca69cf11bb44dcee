"""Datasets of an environment's own problems."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from agentfly_lib.configs import EnvironmentDataConfig, RunConfig
from agentfly_lib.data.environment import environment_contents, environment_problems
from agentfly_lib.data.prepare import load_problems, prepare_dataset
from agentfly_lib.envs.spec import configured_environment, environment_spec
from agentfly_lib.errors import ConfigError, DataError, InfrastructureError
from agentfly_lib.preflight import check_run


def config(**changes) -> EnvironmentDataConfig:
    return EnvironmentDataConfig.model_validate({"name": "odd_environments:THREAD", "eval_problems": 2} | changes)


def test_the_prompt_shows_what_the_environment_shows(odd, tmp_path: Path) -> None:
    told = []
    ref = prepare_dataset(config(train_problems=3), tmp_path, lambda done, total: told.append((done, total)))
    assert (ref.train_rows, ref.eval_rows) == (3, 2)
    assert told == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2)]
    assert ref.columns == ("first_observation", "id", "word")
    ant, bee, cat = load_problems(ref, "train")
    assert ant.messages == ({"role": "user", "content": "Play calm.\n\ncalm ant"},)
    assert ant.columns == {"id": "train-ant", "word": "ant", "first_observation": "calm ant"}
    assert [problem.id for problem in (ant, bee, cat)] == ["train-ant", "train-bee", "train-cat"]
    assert [problem.id for problem in load_problems(ref, "eval")] == ["eval-fox", "eval-gnu"]


def test_it_is_prepared_once_and_anew_when_something_decisive_changes(odd, tmp_path: Path, monkeypatch) -> None:
    first = prepare_dataset(config(), tmp_path)
    assert first.train_rows == 5
    elsewhere = {"instances": 7, "place": "process", "url": "http://127.0.0.1:1"}
    again = prepare_dataset(config(**elsewhere), tmp_path, lambda *_: pytest.fail("prepared again"))
    assert again.fingerprint == first.fingerprint
    others = [
        prepare_dataset(config(settings={"mood": "merry"}), tmp_path),
        prepare_dataset(config(name="odd_environments:BLIND", train_problems=2), tmp_path),
    ]
    monkeypatch.setattr("agentfly_lib.data.environment.environment_contents", lambda spec: {"package odd": "2"})
    monkeypatch.setattr("agentfly_lib.data.inputs.environment_contents", lambda spec: {"package odd": "2"})
    others.append(prepare_dataset(config(), tmp_path))
    assert len({first.fingerprint, *(ref.fingerprint for ref in others)}) == 4


def test_what_decides_beside_the_settings_is_known(odd) -> None:
    spec = environment_spec(odd.kind(packages=("numpy", "no-such-package")))
    contents = environment_contents(spec)
    assert contents["package numpy"][0].isdigit()
    assert contents["package no-such-package"] == "(not installed)"
    assert len(contents["source"]) == 64


def test_where_nothing_is_to_be_seen_at_first_nothing_is_started(odd, monkeypatch) -> None:
    spec = environment_spec(odd.BLIND, {"start_code": 1})
    (problem, *_) = environment_problems(spec, "train", 2)
    assert problem.problem.messages == ({"role": "user", "content": "Play calm."},)
    assert problem.problem.columns == {"id": "train-ant", "word": "ant"}


def test_a_process_tells_the_same_as_a_thread(odd) -> None:
    in_process = environment_problems(environment_spec(odd.KIND), "train", 4, instances=1)
    assert in_process == environment_problems(environment_spec(odd.THREAD), "train", 4)


def bad_rows(odd, *rows):
    return odd.kind(problems=lambda settings, split: iter(rows))


def test_problems_without_end_need_a_number(odd, monkeypatch) -> None:
    def problems(settings, split):
        return ({"question": "Play.", "word": str(number)} for number in itertools.count())

    blind = {"problems": problems, "first_observation": False}
    spec = environment_spec(odd.kind(endless=True, **blind), place="thread")
    with pytest.raises(ConfigError, match=r"odd makes problems without end; .* data\.train_problems"):
        environment_problems(spec, "train", None)
    assert len(environment_problems(spec, "train", 3)) == 3
    chess = {"type": "environment", "name": "chess"}
    with pytest.raises(ConfigError, match="chess makes problems without end"):
        check_run(RunConfig.model_validate({"run": {"name": "x"}, "model": {"type": "tiny"}, "data": chess}))
    monkeypatch.setattr("agentfly_lib.data.environment._MOST_UNASKED", 10)
    with pytest.raises(ConfigError, match=r"odd, train: there are more than 10 problems.*data\.train_problems"):
        environment_problems(environment_spec(odd.kind(**blind), place="thread"), "train", None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Play.", "word": "ant", "bad": 9}, "train problem 1: no episode can begin with it.*no game 9"),
        ({"word": "ant"}, "train problem 1: a problem of an environment has a question"),
        ({"question": "Play.", "word": "ant", "reward": 1}, "'reward' has a name that the rollout itself gives"),
    ],
)
def test_a_problem_that_cannot_be_used_is_named(odd, row, message) -> None:
    with pytest.raises(DataError, match=message):
        environment_problems(environment_spec(bad_rows(odd, row), place="thread"), "train", 1)


def test_an_environment_without_problems_says_so(odd) -> None:
    with pytest.raises(DataError, match="environment odd, train has no rows"):
        environment_problems(environment_spec(bad_rows(odd), place="thread"), "train", 1)


def test_an_environment_that_cannot_run_here_says_what_to_do(odd) -> None:
    def refuse(settings) -> None:
        raise ConfigError("install odd")

    with pytest.raises(ConfigError, match="install odd"):
        environment_problems(environment_spec(odd.kind(check=refuse), place="thread"), "train", 1)


def test_what_the_agent_acts_in_is_asked_for_its_problems_where_the_agent_acts(odd) -> None:
    acts_in = {"name": "odd_environments:KIND", "place": "thread", "url": "http://127.0.0.1:1", "cap": 3}
    recipe = {"run": {"name": "x"}, "model": {"type": "tiny"}, "data": {"type": "environment"}}
    data = RunConfig.model_validate(recipe | {"agent": {"environment": acts_in}}).data
    assert isinstance(data, EnvironmentDataConfig)
    spec = configured_environment(data, where="data")
    assert (spec.kind, spec.place, spec.url) == (odd.KIND, "thread", "http://127.0.0.1:1")
    with pytest.raises(
        InfrastructureError, match=r"127\.0\.0\.1:1 failed to start"
    ):  # the server would show the episodes
        environment_problems(spec, "train", 1)


def test_a_package_that_lists_the_problems_is_needed_here_wherever_the_episodes_are(odd) -> None:
    def problems(settings, split):
        import no_such_game

        yield {"question": no_such_game.QUESTION}

    spec = environment_spec(odd.kind(problems=problems), url="http://127.0.0.1:1")
    with pytest.raises(DataError, match=r"listed on this machine.*no_such_game"):
        environment_problems(spec, "train", 1)
