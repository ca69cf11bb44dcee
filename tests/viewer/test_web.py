"""The trajectory viewer over real shards: what it lists, what it opens, and what it never lets through."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import uvicorn
from starlette.testclient import TestClient
from typer.testing import CliRunner

from agentfly_lib.cli import app
from agentfly_lib.errors import UserError
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.types import (
    Problem,
    TrajectoryGroup,
)
from agentfly_lib.viewer.web import viewer_app
from agentfly_lib.viewer.web.catalog import Catalog, Filters, one_look
from agentfly_lib.viewer.web.export import MOST_EXPORTED
from agentfly_lib.viewer.web.pages import Viewer
from agentfly_lib.viewer.web.pictures import image_type
from agentfly_lib.viewer.web.serve import export_run
from tests.viewer.built_runs import browse, group, record, shelf, trajectory, write_step


@pytest.fixture
def client(run) -> TestClient:
    return browse(run)


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

    def test_a_page_is_all_of_one_moment(self, run):
        catalog = Catalog(run)
        with one_look():
            assert catalog.table().num_rows == 6
            write_step(run, 2, [group("000002-00000", trajectory("000002-00000", 0))])
            assert catalog.table().num_rows == catalog.find(Filters()).total == 6
        assert catalog.table().num_rows == catalog.find(Filters()).total == 7

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
        assert 'href="/train/0/000000-00000/1?at=' in page.text
        assert (
            '<a href="/?split=train&amp;step=0" aria-label="step 0, mean reward 0.' in page.text
        )  # a point of the chart
        assert "2+2?" in page.text  # what the problem asks

    def test_a_trajectory_shows_turns_times_and_tokens(self, client):
        page = client.get("/train/0/000000-00000/0?colour=logprob").text
        for text in ("tool double", "tokens", "500 ms", "reward", "finish stop", "mean log-prob -0.500"):
            assert text in page
        assert page.count('title="token ') == len(b"[double 2]") + len("4 é".encode())
        assert 'class="t p3 ' in page  # exp(-0.5) = 0.607, the fourth of six shades
        assert "é" in page
        assert '<i class="policy"' in page
        assert 'id="by-logprob" checked' in page

    def test_advantages_are_those_of_training(self, client):
        page = client.get("/train/0/000000-00000?colour=advantage").text
        # grpo by hand: rewards 1 and 0.25, mean 0.625, sample standard deviation 0.5303: +-0.7071
        assert "advantage 0.7071" in page
        assert "advantage -0.7071" in page
        assert "Ratios are not known" in page
        assert " ru gu a1 " in page

    def test_ratios_are_those_of_the_update(self, client, run):
        record(run, 0)
        page = client.get("/train/0/000000-00000/0?colour=ratio").text
        # by hand: exp(-0.4 + 0.6) = 1.2214, and exp(-0.6 + 0.5) = 0.9048
        assert "ratio 1.2214, engine gap 0.9048, advantage 0.7071, version 3" in page
        assert " r2 g-1 a1 " in page
        assert "Ratios are not known" not in page

    def test_chains_stand_side_by_side(self, client):
        page = client.get("/train/0/000000-00001").text
        assert page.count('class="card chain"') == 2
        assert "tool at tool:double" in page

    def test_neighbours_are_those_of_the_list(self, client):
        listed = client.get("/?split=train&step=0&sort=reward").text
        places = [unescape(link) for link in re.findall(r'href="(/train/[^"]+\?[^"]*at=\d+)"', listed)]
        assert len(places) == 4
        second = client.get(places[1]).text
        assert [unescape(link) for link in re.findall(r'href="([^"]+)" rel="', second)] == [
            places[0].replace("&at=", "&colour=mask&at="),
            places[2].replace("&at=", "&colour=mask&at="),
        ]
        assert 'rel="prev"' not in client.get(places[0]).text
        assert 'rel="next"' not in client.get(places[3]).text

    def test_what_a_model_wrote_is_text(self, client):
        for path in ("/train/0/000000-00001", "/train/0/000000-00001/0?colour=logprob", "/"):
            page = client.get(path)
            assert "<script" not in page.text
            assert "\x1b" not in page.text
            assert "\u202e" not in page.text
            assert "default-src 'none'" in page.headers["content-security-policy"]
            assert "script-src" not in page.headers["content-security-policy"]
        assert "script>" in unescape(client.get("/train/0/000000-00001").text)

    def test_calls_are_named_with_their_arguments(self, tmp_path):
        directory = RunDirectory(tmp_path / "calls")
        chain = trajectory("000000-00000", 0)
        segment = chain.segments[0]
        call = {"function": {"name": "double", "arguments": {"x": "<b>2</b>"}}}
        turns = (
            replace(segment.turns[0], message=segment.turns[0].message | {"tool_calls": [call]}),
            *segment.turns[1:],
        )
        write_step(directory, 0, [group("000000-00000", replace(chain, segments=(replace(segment, turns=turns),)))])
        page = browse(directory).get("/train/0/000000-00000/0").text
        assert '<b>double</b><span class="mono">{&#34;x&#34;: &#34;&lt;b&gt;2&lt;/b&gt;&#34;}</span>' in page

    @pytest.mark.parametrize(
        ("path", "status", "said"),
        [
            ("/?sort=size", 404, "cannot be sorted by 'size'"),
            ("/?split=test", 404, "no split 'test'"),
            ("/?step=two", 404, "step='two' is not a number"),
            ("/?step=99999999999", 404, "is too large"),
            ("/?min_reward=inf", 404, "is too large"),
            ("/train/99999999999999999999/000000-00000", 404, "no step 99999999999999999999"),
            ("/?order=up", 404, "order='up'"),
            ("/train/7/000000-00000", 404, "no step 7"),
            ("/sampled/7/000000-00000", 404, "version 7 was not evaluated"),
            ("/tests/0/000000-00000", 404, "no split 'tests'"),
            ("/train/0/%3Cscript%3E", 404, "no group"),
            ("/train/0/000000-00000/9", 404, "no chain 9"),
            ("/train/0/000000-00000?colour=x", 404, "cannot be coloured by 'x'"),
            ("/pictures/train/0/000000-00000/abc", 404, "no picture 'abc'"),
            ("/export.exe", 404, "'exe' is not a format for exports"),
            ("/export.jsonl?step=9", 404, "nothing to export"),
            ("/pairs", 404, "no other run"),
            ("/other/", 404, "Not Found"),
            ("/etc/passwd", 404, "Not Found"),
        ],
    )
    def test_what_is_not_there(self, client, path, status, said):
        answer = client.get(path)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
        assert answer.headers["content-type"].startswith("text/plain")

    def test_another_host_s_name_is_refused(self, client):
        assert client.get("/", headers={"host": "evil.example"}).status_code == 400

    @pytest.mark.parametrize(
        ("path", "site", "kind", "status"),
        [
            ("/export.parquet", "cross-site", "image", 403),
            ("/export.html", "cross-site", "document", 403),
            ("/", "cross-site", "iframe", 403),
            ("/", "cross-site", "document", 200),
            ("/export.jsonl", "same-origin", "document", 200),
        ],
    )
    def test_another_site_s_page_makes_it_do_no_work(self, client, path, site, kind, status):
        sent = {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": kind}
        assert client.get(path, headers=sent).status_code == status

    def test_a_part_that_was_changed_is_said_to_be(self, client, run):
        path = run.step(0).rollouts / "part-00000.arrow"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        answer = client.get("/train/0/000000-00000")
        assert answer.status_code == 500
        assert "checksum" in answer.text

    def test_without_the_model_messages_are_shown(self, run):
        page = Viewer(shelf(run, tokens=False)).group(0, "000000-00000", {})
        assert "tokens are not shown" in page
        assert "[double 2]" in page
        assert 'title="token' not in page

    def test_a_run_without_trajectories_says_so(self, tmp_path):
        page = browse(RunDirectory(tmp_path / "nothing")).get("/").text
        assert "no trajectories yet" in page
        assert "<svg" not in page

    def test_too_much_for_a_page_has_pages_of_its_own(self, client, monkeypatch):
        monkeypatch.setattr("agentfly_lib.viewer.web.pages._MOST_TOKENS", 30)
        page = client.get("/train/0/000000-00000").text
        assert page.count('class="card chain"') == 1
        assert '<a href="/train/0/000000-00000/1">chain 1</a>' in page


class TestPictures:
    PNG = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"

    @pytest.fixture
    def pictured(self, tmp_path) -> TestClient:
        """A run whose problem shows one picture as its file and one as an address, and a drawing that is no picture."""
        directory = RunDirectory(tmp_path / "pictured")
        digests = [hashlib.sha256(data).hexdigest() for data in (self.PNG, self.SVG)]
        url = "data:image/png;base64," + base64.b64encode(self.PNG).decode()
        content = [
            {"type": "text", "text": f"what is this? {url}"},
            {"type": "image", "digest": digests[0]},
            {"type": "image", "digest": digests[1]},
            {"type": "image_url", "image_url": {"url": url + "AAAA"}},
            {
                "type": "image_url",
                "image_url": {"url": "data:image/svg+xml;base64," + base64.b64encode(self.SVG).decode()},
            },
        ]
        chain = trajectory("000000-00000", 0, pictures=dict(zip(digests, (self.PNG, self.SVG), strict=True)))
        problem = Problem(id="p", messages=({"role": "user", "content": content},))
        write_step(directory, 0, [TrajectoryGroup(id="000000-00000", problem=problem, trajectories=(chain,))])
        self.digests = digests
        return browse(directory)

    def test_a_picture_has_the_type_of_its_bytes(self, pictured):
        address = "/pictures/train/0/000000-00000/"
        page = pictured.get("/train/0/000000-00000/0").text
        assert re.findall(r'<img src="([^"]+)"', page) == [address + self.digests[0]]
        assert "1 not shown" in page
        answer = pictured.get(address + self.digests[0])
        assert (answer.content, answer.headers["content-type"]) == (self.PNG, "image/png")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert pictured.get(address + self.digests[1]).status_code == 404  # a drawing can carry a script

    def test_addresses_that_carry_a_picture_are_marked_and_not_written_out(self, pictured):
        for path in ("/train/0/000000-00000/0", "/"):
            page = pictured.get(path).text
            assert "what is this? [image/png, 1" in page
            assert "iVBORw0KGgo" not in page

    def test_an_exported_page_carries_its_pictures(self, pictured):
        page = pictured.get("/export.html").text
        assert f'<img src="data:image/png;base64,{base64.b64encode(self.PNG).decode()}"' in page
        assert "svg+xml" not in page

    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            (PNG, "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a", "image/gif"),
            (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
            (b"RIFF\0\0\0\0WAVE", None),
            (SVG, None),
            (b"<!doctype html>", None),
            (b"", None),
        ],
    )
    def test_types(self, data, kind):
        assert image_type(data) == kind


class TestTwoRuns:
    @pytest.fixture
    def both(self, tmp_path) -> TestClient:
        """Two runs that were trained on three problems, and evaluated on two others."""
        runs = []
        for name, rewards in (("one", (0.0, 0.5, 1.0)), ("two", (1.0, 0.25, 1.0))):
            directory = RunDirectory(tmp_path / name)
            for split in (None, directory.evaluation(4, "sampled")):
                groups, scores = [], {}
                for index, reward in enumerate(rewards if split is None else rewards[:2]):
                    made = f"000000-0000{index}"
                    asked = f"{'train' if split is None else 'held'}{index}"
                    groups.append(group(made, trajectory(made, 0), question=f"ask {asked}", problem=asked))
                    scores[f"{made}/0"] = reward
                write_step(directory, 0 if split is None else 4, groups, scores, split)
            runs.append(directory)
        return browse(*runs)

    def test_problems_are_paired(self, both):
        page = both.get("/pairs?split=train").text
        assert re.findall(r">ask (\w+)</a>", page) == ["train0", "train1", "train2"]  # the largest difference first
        assert re.findall(r'class="number (?:good|bad|dim)">([+-][\d.]+)<', page) == ["+1.000", "-0.250", "+0.000"]
        assert "+0.250" in page  # the mean of them
        assert "<svg" in page

    def test_only_where_they_differ_and_by_who_is_worse(self, both):
        page = both.get("/pairs?split=train&differ=yes&sort=worse+first").text
        assert re.findall(r">ask (\w+)</a>", page) == ["train1", "train0"]

    def test_held_out_problems_come_first_where_there_are_any(self, both):
        page = both.get("/pairs").text
        assert re.findall(r">ask (\w+)</a>", page) == ["held0", "held1"]
        link = unescape(re.findall(r'href="(/pairs/held1[^"]*)"', page)[0])
        shown = both.get(link).text
        assert shown.count('class="card chain"') == 2
        assert 'href="/sampled/4/000000-00001"' in shown
        assert 'href="/other/sampled/4/000000-00001"' in shown

    def test_the_other_run_has_pages_too(self, both):
        assert "3 of 3 trajectories" in both.get("/other/").text
        assert "ask train2" in both.get("/other/train/0/000000-00002/0").text
        assert both.get("/pairs/nobody?split=train").status_code == 404
        assert "no split 'x'" in both.get("/pairs?split=x").text
        assert "cannot be sorted by 'x'" in both.get("/pairs?sort=x").text

    def test_nothing_in_common(self, run, tmp_path):
        page = browse(run, RunDirectory(tmp_path / "empty")).get("/pairs").text
        assert "no scored problem in common" in page


class TestExport:
    def test_lines_of_json_hold_every_token(self, client, run):
        record(run, 0)
        lines = [json.loads(line) for line in client.get("/export.jsonl?step=0&sort=reward").text.splitlines()]
        assert [each["reward"] for each in lines] == [1.0, 0.25, 0.0, None]
        first = lines[0]
        assert first["messages"][0]["content"] == "2+2?"
        assert bytes(first["token_ids"][0]).decode().startswith("2+2? [double 2]")
        sampled = first["loss_mask"][0]
        for name, value in (("rollout_logprobs", -0.5), ("old_logprobs", -0.6), ("logprobs", -0.4)):
            assert [number is not None for number in first[name][0]] == sampled
            assert max(first[name][0], key=lambda number: number is not None) == pytest.approx(value)
        assert lines[2]["advantages"] == [[]]  # nothing to compare in its group, so it was not trained on

    def test_parquet_says_the_same(self, client, run, tmp_path):
        record(run, 0)
        (tmp_path / "some.parquet").write_bytes(client.get("/export.parquet?min_reward=1").content)
        (row,) = pq.read_table(tmp_path / "some.parquet").to_pylist()
        (line,) = map(json.loads, client.get("/export.jsonl?min_reward=1").text.splitlines())
        for name in ("metrics", "messages", "columns", "reward_parts"):
            row[name] = json.loads(row[name])
        assert row.keys() == line.keys()
        assert {
            name: value for name, value in row.items() if name not in ("old_logprobs", "logprobs", "advantages")
        } == {name: value for name, value in line.items() if name not in ("old_logprobs", "logprobs", "advantages")}
        assert np.allclose(np.array(row["advantages"], float), np.array(line["advantages"], float), equal_nan=True)

    def test_files_are_named_and_bounded(self, client, monkeypatch):
        assert (
            'filename="demo-000000-00001.jsonl"'
            in client.get("/export.jsonl?step=0&group=000000-00001&chain=1").headers["content-disposition"]
        )
        monkeypatch.setitem(MOST_EXPORTED, "jsonl", 2)  # type: ignore[arg-type]
        assert len(client.get("/export.jsonl").text.splitlines()) == 2
        assert "the first 2" not in client.get("/").text  # the largest kind of file holds more

    def test_a_run_is_one_page_with_a_sample_and_why(self, run, tmp_path):
        (tmp_path / "models").mkdir()
        assert export_run(run.path, tmp_path / "run.html", count=5) == 5
        page = (tmp_path / "run.html").read_text()
        assert page.count('class="card chain"') == 5
        for text in (
            "failed",
            "among the worst of the newest step",
            "one of step 0",
            "<svg",
            "Content-Security-Policy",
        ):
            assert text in page
        assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']*["']""", page)  # nothing from elsewhere
        assert "<script" not in page
        assert export_run(run.path, tmp_path / "run.jsonl") == 6
        assert export_run(run.path, tmp_path / "all.html", count=MOST_EXPORTED["html"]) == 6
        assert export_run(run.path, tmp_path / "group.html", group="000000-00001") == 2
        for bad, said in (("run.txt", "'txt' is not a format for exports"), ("x.html", "not the name of a group")):
            with pytest.raises(UserError, match=said):
                export_run(run.path, tmp_path / bad, group="group")

    def test_what_does_not_fit_into_a_page_is_not_counted(self, run, tmp_path, monkeypatch):
        monkeypatch.setattr("agentfly_lib.viewer.web.alone._MOST_BYTES", 1)
        assert export_run(run.path, tmp_path / "run.html", count=5) == 1
        assert "4 more did not fit" in (tmp_path / "run.html").read_text()
        assert export_run(run.path, tmp_path / "group.html", group="000000-00001") == 1

    def test_the_command_offers_what_a_page_may_hold(self, run, tmp_path):
        most = MOST_EXPORTED["html"]
        arguments = ["view", str(run.path), "--export", str(tmp_path / "run.html"), "--count", str(most + 1)]
        refused = CliRunner().invoke(app, arguments)
        assert refused.exit_code == 2
        assert f"less than or equal to {most}" in refused.output


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.slow
def test_a_browser_runs_nothing_that_a_model_wrote(tmp_path):
    """Served and exported, in a real browser: scripts, styles and frames of a model are letters; nothing is fetched."""
    attack = (
        "</pre></article><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
        "<style>body{display:none}</style><meta http-equiv=refresh content='0;url=/gone'>"
        "<iframe srcdoc='<script>parent.document.title=1</script>'></iframe>\x1b[2J\u202e\u2066" + "̴" * 400 + "x" * 4000
    )
    directory = RunDirectory(tmp_path / "hostile")
    write_step(directory, 0, [group("000000-00000", trajectory("000000-00000", 0, reply=attack), question=attack)])
    pages = Viewer(shelf(directory))
    with served(viewer_app(pages, hosts=["127.0.0.1"])) as address:
        export_run(directory.path, tmp_path / "run.html")
        for url in (f"{address}/train/0/000000-00000/0", f"{address}/", (tmp_path / "run.html").as_uri()):
            found = chromium(url, tmp_path)
            assert "document.title=&#39;run&#39;" in found or "document.title='run'" in found  # as text
            title = re.search(r"<title>(.*?)</title>", found, re.DOTALL)
            assert title is not None
            assert title[1] not in ("run", "1")
            for tag in ("<script", "<iframe", "<img", "<style>body{display", 'http-equiv="refresh"'):
                assert tag not in found
            assert "\x1b" not in found
            assert "\u202e" not in found


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The application on a free port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


def chromium(url: str, folder: Path) -> str:
    """The page as the browser has it once everything in it had its time."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=240, check=True)
    return done.stdout
