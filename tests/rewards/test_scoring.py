"""Every trajectory gets exactly one score; a reward that misbehaves costs its own trajectory and nothing else."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys

import pytest

from agentfly_lib.rewards import math_equal, reward, score_groups
from agentfly_lib.rewards.call import JudgedInWorker, import_path
from agentfly_lib.rewards.pool import CallFailed, NoWorker, WorkerPool, shared_pool
from agentfly_lib.types import Outcome, StopReason


async def score(made, *groups, timeout=20.0, max_concurrency=8, retries=0):
    return await score_groups(made, groups, timeout=timeout, max_concurrency=max_concurrency, retries=retries)


def outcomes(scores):
    return [(s.outcome, s.reward) for s in scores]


@reward(inline=True)
def exact(final_response, answer):
    return float(final_response == answer)


class TestOutcomes:
    async def test_scored_in_order(self, make_group):
        scores = await score(exact, make_group("4", "5"), make_group("6", "4"))
        assert [s.trajectory_id for s in scores] == ["0-0/0", "0-0/1"] * 2
        assert [s.reward for s in scores] == [1.0, 0.0, 0.0, 1.0]
        assert all(s.outcome is Outcome.SCORED for s in scores)

    async def test_a_failed_chain_is_not_asked(self, make_group):
        asked = []

        @reward(inline=True)
        def ask(prediction):
            asked.append(prediction)
            return 1.0

        (failed,) = await score(ask, make_group("4", stops=(StopReason.FAILED,)))
        assert (failed.outcome, failed.reward, failed.error) == (Outcome.FAILED, None, "it broke")
        assert asked == []

    @pytest.mark.parametrize("stop", [StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_FULL])
    async def test_a_truncated_chain_is_scored_and_stays_truncated(self, make_group, stop):
        assert outcomes(await score(exact, make_group("4", stops=(stop,)))) == [(Outcome.TRUNCATED, 1.0)]

    async def test_a_truncated_chain_without_a_reward_stays_truncated(self, make_group):
        none = reward(inline=True)(lambda: None)
        assert outcomes(await score(none, make_group("4", stops=(StopReason.MAX_TURNS,)))) == [
            (Outcome.TRUNCATED, None)
        ]

    async def test_no_tool_call_is_the_agents_own_end(self, make_group):
        assert outcomes(await score(exact, make_group("4", stops=(StopReason.NO_TOOL_CALL,)))) == [
            (Outcome.SCORED, 1.0)
        ]

    async def test_none_drops_and_says_so(self, make_group):
        (dropped,) = await score(reward(name="r", inline=True)(lambda: None), make_group("4"))
        assert (dropped.outcome, dropped.reward) == (Outcome.DROPPED, None)
        assert dropped.error == "reward 'r' returned None: it cannot be scored"

    async def test_nan_drops_with_the_rewards_name(self, make_group):
        (dropped,) = await score(reward(name="r", inline=True)(lambda: float("nan")), make_group("4"))
        assert dropped.outcome is Outcome.DROPPED
        assert "reward 'r'" in (dropped.error or "")

    async def test_parts_are_kept(self, make_group):
        (scored,) = await score(reward(inline=True)(lambda: {"reward": 1, "format": 0.5}), make_group("4"))
        assert scored.parts == {"format": 0.5}

    async def test_an_environments_reward(self, make_group):
        made = reward(inline=True)(lambda env_reward: env_reward)
        assert [s.reward for s in await score(made, make_group("4", env_reward=0.25), make_group("4"))] == [0.25, None]

    async def test_nothing_to_score(self):
        assert await score(exact) == []


class TestErrors:
    async def test_retries_then_dropped_with_the_error(self, make_group):
        tries = []

        @reward(name="r", inline=True)
        def fail():
            tries.append(1)
            raise OSError("no route")

        (dropped,) = await score(fail, make_group("4"), retries=2)
        assert dropped.error == "reward 'r' failed: OSError: no route"
        assert len(tries) == 3

    async def test_a_retry_may_succeed(self, make_group):
        tries = []

        @reward(inline=True)
        def fail_once():
            tries.append(1)
            return 1.0 if len(tries) > 1 else 1 / 0

        assert outcomes(await score(fail_once, make_group("4"), retries=1)) == [(Outcome.SCORED, 1.0)]

    async def test_what_it_raises_is_logged_such_that_a_terminal_only_shows_it(self, make_group, caplog):
        @reward(inline=True, name="r")
        def hostile() -> float:
            raise ValueError("\x1b]0;title\x07\n" + "x" * 10_000)

        (score_of, *_) = await score(hostile, make_group("4"))
        assert "\x1b]0;title" in (score_of.error or "")  # kept as it was
        assert "no reward from r; the first, 0-0/0: reward 'r' failed: ValueError: ␛]0;title␇ xxx" in caplog.text
        assert "\x1b" not in caplog.text
        assert len(caplog.text) < 1000

    @pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1), KeyboardInterrupt()])
    async def test_whatever_an_async_reward_raises(self, make_group, error):
        @reward
        async def fail(prediction):
            await asyncio.sleep(0)
            if prediction == "bad":
                raise error
            return 1.0

        scores = await score(fail, make_group("bad", "good"))
        assert [s.outcome for s in scores] == [Outcome.DROPPED, Outcome.SCORED]
        assert type(error).__name__ in (scores[0].error or "")


class TestAsync:
    async def test_they_wait_at_the_same_time_up_to_the_limit(self, make_group):
        waiting, most = 0, 0
        full = asyncio.Event()

        @reward
        async def wait(prediction):
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            if waiting == 3:
                full.set()
            await full.wait()
            waiting -= 1
            return 1.0

        await score(wait, make_group(*"1234567"), max_concurrency=3)
        assert most == 3

    async def test_one_that_hangs_is_given_up_alone(self, make_group):
        @reward(name="r", timeout=0.05)
        async def maybe(prediction):
            if prediction == "hang":
                await asyncio.Event().wait()
            return 1.0

        scores = await score(maybe, make_group("hang", "ok"))
        assert [s.outcome for s in scores] == [Outcome.DROPPED, Outcome.SCORED]
        assert scores[0].error == "reward 'r' did not return within 0.05 s"

    async def test_the_recipes_limit_where_the_reward_has_none(self, make_group):
        @reward
        async def hang():
            await asyncio.Event().wait()

        (dropped,) = await score(hang, make_group("4"), timeout=0.05)
        assert "within 0.05 s" in (dropped.error or "")


class TestWorkers:
    async def test_a_plain_function_runs_in_another_process(self, odd_rewards, make_group):
        pids = {s.reward for s in await score(odd_rewards.pid, make_group(*"12345678"))}
        assert os.getpid() not in pids
        assert len(pids) <= shared_pool().size

    async def test_workers_stay_for_the_next_call(self, odd_rewards, make_group):
        first = await score(odd_rewards.pid, make_group("1"), max_concurrency=1)
        second = await score(odd_rewards.pid, make_group("1"), max_concurrency=1)
        assert first[0].reward == second[0].reward

    @pytest.mark.parametrize("name", ["hangs_in_c", "ignores_signals"])
    async def test_one_that_hangs_is_killed_alone(self, odd_rewards, make_group, name):
        await score(odd_rewards.right, make_group("4"))
        scores = await score(getattr(odd_rewards, name), make_group("ok", "hang", "ok", "ok"))
        assert [s.outcome for s in scores] == [Outcome.SCORED, Outcome.DROPPED, Outcome.SCORED, Outcome.SCORED]
        assert scores[1].error == f"reward {name!r} did not return within 0.5 s and was killed"
        assert scores[1].seconds < 15

    async def test_one_that_kills_its_process_is_alone_too(self, odd_rewards, make_group):
        scores = await score(odd_rewards.crashes, make_group("ok", "crash", "ok"))
        assert [s.outcome for s in scores] == [Outcome.SCORED, Outcome.DROPPED, Outcome.SCORED]
        assert "was killed by SIGSEGV" in (scores[1].error or "")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("exits", "SystemExit: 7"),
            ("leaves", "exit code 7"),
            ("raises", "ValueError: bad"),
            ("unspeakable", "failed: Unspeakable"),
            ("unspeakable_async", "failed: Unspeakable"),
        ],
    )
    async def test_the_reason_is_told(self, odd_rewards, make_group, name, reason):
        (dropped,) = await score(getattr(odd_rewards, name), make_group("4"))
        assert reason in (dropped.error or "")

    async def test_one_that_forks_answers_once(self, odd_rewards, make_group):
        group = make_group(*map(str, range(12)))
        scores = await score(odd_rewards.forks, group, max_concurrency=1)
        assert [s.reward for s in scores] == [float(chain) for chain in range(12)]

    async def test_one_that_exits_on_the_loop_costs_its_own_trajectory(self, make_group):
        (dropped,) = await score(reward(name="r", inline=True)(lambda: sys.exit(7)), make_group("4"))
        assert dropped.error == "reward 'r' failed: SystemExit: 7"

    async def test_prints_do_not_disturb(self, odd_rewards, make_group, capfd):
        assert outcomes(await score(odd_rewards.prints, make_group("4"))) == [(Outcome.SCORED, 1.0)]
        assert capfd.readouterr().out == ""

    async def test_whole_values_cross_the_border(self, odd_rewards, make_group):
        (scored,) = await score(odd_rewards.whole, make_group("4", env_reward=0.5))
        assert (scored.reward, scored.parts) == (3.0, {"env": 0.5})

    async def test_what_cannot_be_sent_is_an_error_of_its_own(self, odd_rewards, make_group):
        (dropped,) = await score(odd_rewards.right, make_group("4", answer=lambda: None))
        assert "cannot be sent to a worker process" in (dropped.error or "")
        assert outcomes(await score(odd_rewards.right, make_group("4"))) == [(Outcome.SCORED, 1.0)]

    async def test_a_closure_runs_in_a_thread(self, make_group, caplog):
        here = []

        @reward(name="local")
        def closure(prediction):
            here.append(os.getpid())
            return 1.0

        assert import_path(closure) is None
        assert outcomes(await score(closure, make_group("4"))) == [(Outcome.SCORED, 1.0)]
        assert here == [os.getpid()]
        assert "reward local runs in a thread" in caplog.text

    async def test_a_closure_that_hangs_is_given_up(self, make_group):
        import threading

        release = threading.Event()
        hang = reward(name="local", timeout=0.05)(lambda: release.wait(30))
        (dropped,) = await score(hang, make_group("4"))
        release.set()
        assert dropped.error == "reward 'local' did not return within 0.05 s"

    def test_a_closed_pool_leaves_no_process(self, odd_rewards):
        pool = WorkerPool(1)
        pid = int(pool.call("odd_rewards:pid", {"prediction": ""}, seconds=20))
        pool.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(CallFailed, match="closed"):
            pool.call("odd_rewards:pid", {"prediction": ""}, seconds=20)

    @pytest.mark.parametrize("name", ["pid", "pid_and_hang"])
    def test_a_worker_ends_when_its_parent_is_killed(self, odd_rewards, tmp_path, name):
        """Idle, or in the middle of a call that never ends."""
        code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from agentfly_lib.rewards.pool import shared_pool
shared_pool().call("odd_rewards:{name}", {{"prediction": {str(tmp_path / "pid")!r}}}, seconds=1)
sys.stdin.read()
"""
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
            worker = int(pipe.read_text())  # waits until the worker writes it
            parent.kill()
        assert _ends(worker, seconds=30), "the worker outlived its parent"


def _ends(pid: int, *, seconds: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


class TestJudgedInWorker:
    @staticmethod
    def judge(name, prediction="x", seconds=20.0):
        return JudgedInWorker(target=f"odd_rewards:{name}", keywords={"prediction": prediction}, seconds=seconds)

    @pytest.mark.parametrize(("name", "prediction"), [("hangs_in_c", "hang"), ("crashes", "crash")])
    async def test_a_text_that_hangs_or_kills_its_judge_is_worth_nothing(self, odd_rewards, name, prediction):
        assert await self.judge("pid", "") > 0  # a worker is up
        assert await self.judge(name, prediction, seconds=2.0) == 0.0

    async def test_what_is_no_fault_of_the_text_is_a_failure(self, odd_rewards, monkeypatch):
        for target in ("no_such_module:x", "odd_rewards:raises"):
            with pytest.raises(CallFailed):
                await JudgedInWorker(target=target, keywords={"prediction": ""}, seconds=20.0)
        monkeypatch.setattr("agentfly_lib.rewards.call.WAIT_SECONDS", 0.01)
        monkeypatch.setattr("agentfly_lib.rewards.call.shared_pool", lambda: full)
        full = WorkerPool(1)
        full._slots.acquire()
        with pytest.raises(NoWorker, match=r"found no free worker within 0\.01 s"):
            await self.judge("pid")

    async def test_honest_texts_wait_for_hostile_ones_in_no_time_of_their_own(
        self, odd_rewards, make_group, monkeypatch
    ):
        pool = WorkerPool(1)
        monkeypatch.setattr("agentfly_lib.rewards.call.shared_pool", lambda: pool)
        judged = reward(inline=True, timeout=1.0)(lambda prediction: self.judge("hangs_in_c", prediction))
        scores = await score(judged, make_group("hang", "honest"))
        pool.close()
        assert [s.reward for s in scores] == [0.0, 1.0]

    async def test_a_pool_that_is_closed_judges_nobody(self, odd_rewards, tmp_path, monkeypatch):
        pool = WorkerPool(1)
        monkeypatch.setattr("agentfly_lib.rewards.call.shared_pool", lambda: pool)
        pipe = tmp_path / "pid"
        os.mkfifo(pipe)
        judging = asyncio.ensure_future(self.judge("pid_and_hang", str(pipe)))
        await asyncio.to_thread(pipe.read_text)  # it is being judged
        pool.close()
        with pytest.raises(CallFailed, match="was closed"):
            await judging


class TestMathEqual:
    async def test_numbers_are_decided_without_a_worker(self, make_group):
        replies = ["The answer is \\boxed{4}", "The answer is 5", "", "\\boxed{4.0}"]
        assert [s.reward for s in await score(math_equal, make_group(*replies))] == [1.0, 0.0, 0.0, 1.0]

    async def test_algebra_is_decided_by_a_worker(self, make_group):
        group = make_group("\\boxed{\\sqrt{16}}", "\\boxed{\\frac{16}{2^2}}", "\\boxed{\\sqrt{15}}")
        assert [s.reward for s in await score(math_equal, group)] == [1.0, 1.0, 0.0]

    async def test_a_comparison_that_does_not_end_is_worth_nothing(self, make_group, monkeypatch):
        # By way of the table of modules: the package's own attribute of that name is the reward.
        monkeypatch.setattr(sys.modules["agentfly_lib.rewards.math_equal"], "SYMBOLIC_SECONDS", 0.5)
        await score(math_equal, make_group("\\boxed{\\sqrt{16}}"))
        scores = await score(math_equal, make_group("\\boxed{9^{9^{9^{9}}}}", "\\boxed{4}", "\\boxed{\\sqrt{16}}"))
        assert [s.reward for s in scores] == [0.0, 1.0, 1.0]
        assert all(s.outcome is Outcome.SCORED for s in scores)

    async def test_an_answer_cannot_opt_out_of_being_wrong(self, make_group, monkeypatch):
        monkeypatch.setattr(sys.modules["agentfly_lib.rewards.math_equal"], "SYMBOLIC_SECONDS", 2.0)
        (scored,) = await score(math_equal, make_group("\\boxed{10^{10^{10}}}", answer="42"))
        assert (scored.outcome, scored.reward) == (Outcome.SCORED, 0.0)
