"""The trajectory viewer over real shards: what it lists, what it opens, and what it never lets through."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from agentfly_lib.chat import StreamDecoder
from agentfly_lib.configs import config_toml, load_config
from agentfly_lib.store import RolloutStore, Score, ScoreStore, outcome_of, read_rollout_manifest
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.types import (
    Failure,
    FailureKind,
    FinishReason,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentfly_lib.viewer.web import viewer_app
from agentfly_lib.viewer.web.app import Viewer
from agentfly_lib.viewer.web.catalog import Catalog, Filters

HOSTILE = "</pre><script>alert(1)</script>\x1b[2J\u202e"


class Bytes:
    """Every byte is a token."""

    def stream_decoder(self) -> StreamDecoder:
        return StreamDecoder(lambda ids: bytes(ids).decode(errors="replace"), chr)


def trajectory(group: str, chain: int, *, reply: str = "4 é", tool: str | None = "double", **changes) -> Trajectory:
    prompt, called, result = b"2+2? ", b"[double 2]", b" T 4 "
    pieces = [(called, True), (result, False)] if tool else []
    pieces.append((reply.encode(), True))
    ids, mask, turns = list(prompt), [False] * len(prompt), []
    for data, sampled in pieces:
        start = len(ids)
        ids += data
        mask += [sampled] * len(data)
        message = {"role": "assistant", "content": data.decode()}
        if not sampled:
            message = {"role": "tool", "name": tool, "content": "4"}
        extra = {"finish": FinishReason.STOP, "policy_version": 3} if sampled else {}
        turns.append(Turn(message=message, start=start, end=len(ids), sampled=sampled, seconds=0.5, **extra))
    segment = Segment(
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask),
        logprobs=np.where(mask, -0.5, np.nan).astype(np.float32),
        turns=tuple(turns),
    )
    base = Trajectory(
        id=f"{group}/{chain}",
        problem_id="p",
        group_id=group,
        chain=chain,
        segments=(segment,),
        stop=StopReason.FINISHED,
        metrics={"seconds": 1.5},
    )
    return replace(base, **changes)


def write_step(run: RunDirectory, step: int, groups: list[TrajectoryGroup], rewards=None) -> None:
    """Every group a part of its own; scored with the rewards, by trajectory, if there are any."""
    directory = run.step(step)
    chains = len(groups[0].trajectories)
    store = RolloutStore.open(
        directory, step=step, policy_version=step, group_ids=[group.id for group in groups], chains=chains
    )
    for group in groups:
        store.append([group])
    store.finish()
    if rewards is None:
        return
    scores, rollouts = ScoreStore(directory, "r"), read_rollout_manifest(directory)
    for part, group in zip(rollouts.parts, groups, strict=True):
        scores.append(
            part.name,
            [
                Score(trajectory_id=each.id, outcome=outcome_of(each.stop, rewards[each.id]), reward=rewards[each.id])
                for each in group.trajectories
            ],
        )
    scores.finish(rollouts)


def group(name: str, *trajectories: Trajectory, question: str = "2+2?") -> TrajectoryGroup:
    problem = Problem(id="p", messages=({"role": "user", "content": question},), columns={"answer": question})
    return TrajectoryGroup(id=name, problem=problem, trajectories=trajectories)


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """Two steps: step 0 scored, with a failed chain; step 1 not scored yet."""
    directory = RunDirectory(tmp_path / "demo")
    directory.path.mkdir()
    config = load_config(Path("recipes/ci.toml"), [f"run.root={tmp_path}", "run.name=demo", "rollout.chains=2"])
    directory.config_file.write_text(config_toml(config))
    failure = Failure(kind=FailureKind.TOOL, message=HOSTILE, where="tool:double")
    first = group("000000-00000", trajectory("000000-00000", 0), trajectory("000000-00000", 1, reply="no", tool=None))
    second = group(
        "000000-00001",
        trajectory("000000-00001", 0, reply=HOSTILE),
        trajectory("000000-00001", 1, stop=StopReason.FAILED, failure=failure),
        question=HOSTILE,
    )
    rewards = {"000000-00000/0": 1.0, "000000-00000/1": 0.25, "000000-00001/0": 0.0, "000000-00001/1": None}
    write_step(directory, 0, [first, second], rewards)
    write_step(directory, 1, [group("000001-00000", trajectory("000001-00000", 0), trajectory("000001-00000", 1))])
    return directory


@pytest.fixture
def client(run) -> TestClient:
    app = viewer_app(Viewer(run.path, chat=Bytes()), hosts=["127.0.0.1"])
    return TestClient(app, base_url="http://127.0.0.1")


class TestCatalog:
    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            ({}, [f"{name}/{chain}" for name in ("000001-00000", "000000-00000", "000000-00001") for chain in (0, 1)]),
            ({"step": 1}, ["000001-00000/0", "000001-00000/1"]),
            ({"min_reward": 0.25}, ["000000-00000/0", "000000-00000/1"]),
            ({"max_reward": 0.0}, ["000000-00001/0"]),
            ({"failure": "tool"}, ["000000-00001/1"]),
            ({"outcome": "failed"}, ["000000-00001/1"]),
            ({"stop": "failed"}, ["000000-00001/1"]),
            ({"tool": "double", "step": 0}, ["000000-00000/0", "000000-00001/0", "000000-00001/1"]),
            ({"tool": "doubl"}, []),
            ({"sort": "reward", "order": "ascending", "step": 0},
             ["000000-00001/0", "000000-00000/1", "000000-00000/0", "000000-00001/1"]),
        ],
    )  # fmt: skip
    def test_filters_and_orders(self, run, filters, found):
        page = Catalog(run).find(Filters(**filters))
        assert [row.id for row in page.rows] == found
        assert (page.found, page.total) == (len(found), 6)

    def test_pages(self, run):
        page = Catalog(run).find(Filters(), offset=4, limit=1)
        assert [row.id for row in page.rows] == ["000000-00001/0"]
        assert page.found == 6

    def test_mean_rewards(self, run):
        assert Catalog(run).rewards() == [(0, pytest.approx(1.25 / 3))]

    def test_a_run_that_goes_on_is_read_where_it_is_new(self, run, monkeypatch):
        from agentfly_lib.viewer.web import catalog as module

        catalog = Catalog(run)
        assert catalog.table().num_rows == 6
        read = []
        whole = module._read
        monkeypatch.setattr(module, "_read", lambda *a, **k: read.append(a[1].name) or whole(*a, **k))
        write_step(run, 2, [group("000002-00000", trajectory("000002-00000", 0), trajectory("000002-00000", 1))])
        assert catalog.table().num_rows == 8
        assert read == ["part-00000.arrow"]

    def test_a_damaged_part_is_left_out_and_an_empty_run_is_empty(self, run, tmp_path, caplog):
        path = run.step(0).rollouts / "part-00000.arrow"
        path.write_bytes(path.read_bytes()[:200])
        page = Catalog(run).find(Filters())
        assert page.found == 4
        assert "part-00000.arrow is left out" in caplog.text
        assert Catalog(RunDirectory(tmp_path / "nothing")).find(Filters()).total == 0


class TestPages:
    def test_the_list_links_to_every_trajectory(self, client):
        page = client.get("/")
        assert page.status_code == 200
        assert "6 of 6 trajectories" in page.text
        assert 'href="/steps/0/000000-00000/1"' in page.text
        assert "<svg" in page.text

    def test_a_trajectory_shows_turns_times_and_tokens(self, client):
        page = client.get("/steps/0/000000-00000/0?colour=logprob").text
        for text in ("tool double", "tokens", "0.5 s", "reward", "finish stop", "mean log-prob -0.500"):
            assert text in page
        assert page.count('title="token ') == len(b"[double 2]") + len("4 é".encode())
        assert 'class="p3"' in page  # exp(-0.5) = 0.607, the fourth of six shades
        assert "é" in page

    def test_advantages_are_those_of_training(self, client):
        page = client.get("/steps/0/000000-00000?colour=advantage").text
        # grpo by hand: rewards 1 and 0.25, mean 0.625, sample standard deviation 0.5303: +-0.7071
        assert "advantage 0.7071" in page
        assert "advantage -0.7071" in page

    def test_chains_stand_side_by_side(self, client):
        page = client.get("/steps/0/000000-00001").text
        assert page.count('class="card chain"') == 2
        assert "tool at tool:double" in page

    def test_what_a_model_wrote_is_text(self, client):
        for path in ("/steps/0/000000-00001", "/steps/0/000000-00001/0?colour=logprob"):
            page = client.get(path)
            assert "<script" not in page.text
            assert "\x1b" not in page.text
            assert "\u202e" not in page.text
            assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "script>" in unescape(client.get("/steps/0/000000-00001").text)

    @pytest.mark.parametrize(
        ("path", "status", "said"),
        [
            ("/?sort=size", 404, "no order by 'size'"),
            ("/?step=two", 404, "step='two' is not a number"),
            ("/?order=up", 404, "order='up'"),
            ("/steps/7/000000-00000", 404, "no step 7"),
            ("/steps/0/%3Cscript%3E", 404, "no group"),
            ("/steps/0/000000-00000/9", 404, "no chain 9"),
            ("/steps/0/000000-00000?colour=x", 404, "no colour by 'x'"),
            ("/etc/passwd", 404, "Not Found"),
        ],
    )
    def test_what_is_not_there(self, client, path, status, said):
        answer = client.get(path)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert answer.headers["content-type"].startswith("text/plain")

    def test_another_host_s_name_is_refused(self, client):
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400

    def test_a_part_that_was_changed_is_said_to_be(self, client, run):
        path = run.step(0).rollouts / "part-00000.arrow"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        answer = client.get("/steps/0/000000-00000")
        assert answer.status_code == 500
        assert "checksum" in answer.text

    def test_without_the_model_messages_are_shown(self, run):
        page = Viewer(run.path).group(0, "000000-00000", {})
        assert "tokens are not shown" in page
        assert "[double 2]" in page
        assert "title=" not in page.split("<main>")[1]

    def test_two_runs_share_a_chart(self, run, tmp_path):
        other = RunDirectory(tmp_path / "other")
        shutil.copytree(run.path, other.path)
        page = Viewer(run.path, other=other.path).index({})
        assert "other (other)" in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.slow
def test_a_browser_shows_an_exported_page(run, tmp_path):
    path = tmp_path / "group.html"
    path.write_text(Viewer(run.path, chat=Bytes()).group(0, "000000-00001", {}))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.count("card chain") == 2
    assert "alert(1)" in done.stdout  # as text
    assert "<script" not in done.stdout
