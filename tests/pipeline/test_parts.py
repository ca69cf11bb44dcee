"""The small parts that a session holds: notes of the learner, work beside the flow, the folder of weights."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from agentfly_lib.errors import ConfigError
from agentfly_lib.pipeline import background as background_module
from agentfly_lib.pipeline.background import Background
from agentfly_lib.pipeline.exchange import Exchange
from agentfly_lib.pipeline.learning import Learning
from agentfly_lib.refs import LearnerRef
from agentfly_lib.store.layout import RunDirectory

RANKS = LearnerRef(names=("rank",), namespace="n", policy_version=3)


class TestLearning:
    async def test_the_learner_is_one_user_s_at_a_time_and_only_that_one_notes_anything(self) -> None:
        learning, seen = Learning(), []

        async def use(version: int) -> None:
            async with learning.turn() as turn:
                seen.append(("begins", version, learning.version))
                await asyncio.sleep(0)
                turn.holds(version)

        await asyncio.gather(use(1), use(2))
        assert seen == [("begins", 1, 0), ("begins", 2, 1)]
        assert learning.version == 2

    async def test_a_checkpoint_is_owed_until_it_is_saved(self) -> None:
        learning = Learning()
        async with learning.turn() as turn:
            turn.saves(3, RANKS)
        assert learning.saving is not None
        assert (learning.saving.version, learning.saving.learner) == (3, RANKS)
        async with learning.turn() as turn:
            turn.saved()
        assert learning.saving is None

    async def test_a_turn_that_fails_is_over(self) -> None:
        learning = Learning()
        with pytest.raises(ValueError, match="no"):
            async with learning.turn():
                raise ValueError("no")
        async with asyncio.timeout(10), learning.turn():
            pass


class TestBackground:
    async def test_what_fails_is_logged_and_harms_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        background, done = Background(), []

        async def fail() -> None:
            raise OSError("the page is gone")

        async def work() -> None:
            await asyncio.sleep(0)
            done.append(1)

        background.start(fail())
        background.start(work())
        await background.finish()
        assert done == [1]
        assert [record.getMessage() for record in caplog.records] == [
            "background work failed: OSError: the page is gone"
        ]

    async def test_what_is_late_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(background_module, "_END_SECONDS", 0.01)
        background = Background()
        background.start(asyncio.sleep(600))
        await background.finish()
        assert "given up" in caplog.text
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    async def test_cancelled_work_is_no_failure(self, caplog: pytest.LogCaptureFixture) -> None:
        background = Background()
        background.start(asyncio.sleep(600))
        background.cancel()
        with caplog.at_level(logging.WARNING):
            await background.finish()
        assert caplog.records == []


class TestExchange:
    async def test_the_folder_is_private_always_the_same_and_goes_with_the_session(self, tmp_path: Path) -> None:
        run = RunDirectory(tmp_path / "demo")
        folders = []
        for _ in range(2):
            async with AsyncExitStack() as closing:
                folder = Exchange(run, closing).folder
                assert folder.stat().st_mode & 0o777 == 0o700
                (folder / "policy.safetensors").write_text("weights")
                folders.append(folder)
            assert not folder.exists()
        assert folders[0] == folders[1]
        assert folders[0] != Exchange(RunDirectory(tmp_path / "other"), AsyncExitStack()).folder

    async def test_what_others_can_read_is_refused(self, tmp_path: Path) -> None:
        async with AsyncExitStack() as closing:
            run = RunDirectory(tmp_path)
            folder = Exchange(run, closing).folder
            folder.chmod(0o755)
            with pytest.raises(ConfigError, match="not a private folder"):
                _ = Exchange(run, closing).folder
