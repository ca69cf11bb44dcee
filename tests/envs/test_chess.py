"""Chess: who knows the mate gets 1, who guesses does not; Stockfish beats a random player, and random moves lose."""

from __future__ import annotations

import itertools
import random
import shutil

import pytest

from agentfly_lib.envs.chess import KIND, Chess, ChessSettings
from agentfly_lib.envs.environment import Environment
from agentfly_lib.errors import ConfigError

chess = pytest.importorskip("chess", reason="python-chess is not installed")
STOCKFISH = shutil.which("stockfish") or shutil.which("/usr/games/stockfish")
needs_stockfish = pytest.mark.skipif(STOCKFISH is None, reason="Stockfish is not installed")
BACK_RANK = {"fen": "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "seed": 1}


def problems(count: int, split: str = "train", **settings):
    return list(itertools.islice(KIND.problems(ChessSettings(**settings), split), count))


def mate(board) -> str:
    """The oracle: tries every move."""
    for move in board.legal_moves:
        after = board.copy()
        after.push(move)
        if after.is_checkmate():
            return move.uci()
    raise AssertionError(board.fen())


def test_the_mate_is_worth_1_and_another_move_0() -> None:
    game = Chess()
    assert isinstance(game, Environment)
    seen = game.reset(BACK_RANK)
    assert seen.startswith("You play White; it is your move.\n. . . . . . k .\n")
    for written in ("move a1a8", "move Ra8#", "move Ra8"):
        game.reset(BACK_RANK)
        done = game.step(written)
        assert (done.observation, done.reward, done.done) == ("Checkmate.", 1.0, True)
    assert game.step("move a1a8").error == "The game is over."
    game.reset(BACK_RANK)
    missed = game.step("move a1a7")
    assert (missed.observation, missed.reward, missed.done) == ("That is no mate.", 0.0, True)


def test_an_oracle_solves_what_a_random_player_does_not() -> None:
    game, draws = Chess(), random.Random(0)
    solved, guessed = [], []
    rows = problems(6)
    for row in rows:
        game.reset(row)
        solved.append(game.step(f"move {mate(chess.Board(row['fen']))}").reward)
        game.reset(row)
        moves = game.step("legal_moves").observation.split()
        guessed.append(game.step(f"move {draws.choice(moves)}").reward)
    assert solved == [1.0] * 6
    assert sum(guessed) < 3
    assert len({row["fen"] for row in rows}) == 6


def test_problems_are_the_same_every_time_and_differ_between_splits() -> None:
    assert problems(3) == problems(3)
    assert not {row["fen"] for row in problems(3)} & {row["fen"] for row in problems(3, "eval")}
    assert problems(3, seed=1) != problems(3)
    assert {chess.Board(row["fen"]).turn for row in problems(8, task="game")} == {True, False}


@pytest.mark.parametrize(
    "written",
    [
        "",
        "fly",
        "move",
        "move e9",
        "move 0000",
        "move --",
        "move " + "e2e4" * 250_000,
        "move e2é4\x00",
        "move a1a8 now",
    ],
)
def test_what_is_no_move_is_told_and_changes_nothing(written: str) -> None:
    game = Chess()
    game.reset(BACK_RANK)
    told = game.step(written)
    assert told.error == told.observation
    assert not told.done
    assert len(told.observation) < 500
    assert game.step("move a1a8").reward == 1.0


def test_too_many_errors_end_it() -> None:
    game = Chess(max_errors=2)
    game.reset(BACK_RANK)
    assert not game.step("move e9").done
    last = game.step("move e9")
    assert (last.done, last.reward) == (True, 0.0)
    game.reset(BACK_RANK)
    assert not game.step("move e9").done  # counted anew


def test_a_random_opponent_answers_the_same_way_every_time() -> None:
    (row,) = problems(1, task="game", opening_moves=0)
    game = Chess(task="game", max_moves=3)
    played = []
    for _ in range(2):
        first = game.reset(row)
        assert first.endswith(f"FEN: {chess.STARTING_FEN}")
        steps = [game.step(f"move {move}") for move in ("e2e4", "d2d3", "h2h3")]
        played.append([step.observation for step in steps])
        assert (steps[2].done, steps[2].reward) == (True, 0.5)
    assert played[0] == played[1]
    assert played[0][0].startswith("Your opponent plays ")


def test_the_end_of_a_game_is_counted_for_the_agent() -> None:
    game = Chess(task="game")
    game.reset({"fen": "rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2", "seed": 0})
    won = game.step("move d8h4")
    assert (won.observation, won.reward, won.done) == ("You win: checkmate.", 1.0, True)
    game.reset({"fen": "7k/5Q2/8/8/8/8/8/K7 w - - 0 1", "seed": 0})
    assert (won := game.step("move f7f8")).observation.startswith("Your opponent plays Kh7")
    assert not won.done
    game.reset({"fen": "7k/8/6Q1/8/8/8/8/K7 w - - 0 1", "seed": 0})
    stale = game.step("move a1a2")
    assert (stale.observation, stale.reward) == ("Draw: stalemate.", 0.5)
    with pytest.raises(ValueError, match="is not valid, or the game is over"):
        game.reset({"fen": "7k/5K2/6Q1/8/8/8/8/8 b - - 0 1", "seed": 0})


@needs_stockfish
def test_stockfish_beats_a_random_player_and_judges_games() -> None:
    game = Chess(task="game", opponent="stockfish", opponent_nodes=2000, max_moves=60)
    draws = random.Random(0)
    try:
        for _ in range(2):
            game.reset({"fen": chess.STARTING_FEN, "seed": 0})
            step = game.step("legal_moves")
            while not step.done:
                step = game.step(f"move {draws.choice(game.step('legal_moves').observation.split())}")
            assert step.reward == 0.0
            assert step.observation.endswith("You lose: checkmate.")
    finally:
        game.close()
        game.close()


@needs_stockfish
def test_stockfish_as_a_player_wins_against_random_moves() -> None:
    from chess.engine import Limit, SimpleEngine

    game = Chess(task="game", max_moves=80)
    with SimpleEngine.popen_uci(STOCKFISH) as oracle:
        game.reset({"fen": chess.STARTING_FEN, "seed": 7})
        step = None
        while step is None or not step.done:
            step = game.step(f"move {oracle.play(game._board, Limit(nodes=1000)).move}")
    assert step.reward == 1.0


@needs_stockfish
def test_an_unfinished_game_is_worth_what_stockfish_expects() -> None:
    game = Chess(task="game", max_moves=1, judge="stockfish", judge_nodes=2000)
    try:
        game.reset({"fen": "k7/8/8/8/8/8/6PP/KQ6 w - - 0 1", "seed": 0})
        won = game.step("move h2h3")
        assert won.reward > 0.9
        game.reset({"fen": "k6r/8/8/8/8/8/8/K7 w - - 0 1", "seed": 0})
        lost = game.step("move a1a2")
        assert lost.reward < 0.1
        assert "judged" in lost.observation
    finally:
        game.close()


def test_what_is_missing_is_said(monkeypatch) -> None:
    KIND.check(ChessSettings())
    with pytest.raises(ConfigError, match="there is no program 'nothing-of-that-name'; `apt-get install stockfish`"):
        KIND.check(ChessSettings(task="game", opponent="stockfish", stockfish="nothing-of-that-name"))
    monkeypatch.setitem(__import__("sys").modules, "chess", None)
    with pytest.raises(ConfigError, match="pip install chess"):
        KIND.check(ChessSettings())
