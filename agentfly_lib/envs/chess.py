"""Chess: find the mate, or play a game against random moves or against Stockfish.

The rules are python-chess's. Problems are made here, from seeds: positions out of random games, in which there is a
mate in one, or from which a game is played on, the agent being whoever is to move. Stockfish runs as a process of its
own with one thread and a limit of nodes, so that the same moves get the same answers.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from agentfly_lib.envs.environment import EnvironmentKind, EnvironmentSettings, StepResult
from agentfly_lib.errors import ConfigError

if TYPE_CHECKING:
    import chess
    import chess.engine

__all__ = ["KIND", "Chess", "ChessSettings"]

_RESULTS = {True: 1.0, None: 0.5, False: 0.0}
_SHOWN_CHARS = 100
_DEBIAN = "/usr/games/stockfish"
_LONGEST_GAME = 200
"""Moves of both sides in a random game."""


class ChessSettings(EnvironmentSettings):
    """What is to be done, and against whom."""

    task: Literal["mate_in_one", "game"] = "mate_in_one"
    """`mate_in_one`: the first legal move mates (1) or does not (0). `game`: a win is 1, a draw 0.5, a loss 0."""
    opponent: Literal["random", "stockfish"] = "random"
    """Who answers in a game."""
    opponent_nodes: PositiveInt = 200
    """Positions that Stockfish looks at for a move: few make a weak opponent, which is still stronger than most."""
    max_moves: PositiveInt = 40
    """Of the agent in a game; then it is judged."""
    judge: Literal["stockfish", "draw"] = "draw"
    """What a game is worth that is not over after `max_moves`: a draw, or the result that Stockfish expects."""
    judge_nodes: PositiveInt = 50_000
    max_errors: PositiveInt = 5
    """So many moves that are none end the episode with 0."""
    opening_moves: NonNegativeInt = 6
    """Random moves of both sides, at most, before a game begins for the agent."""
    stockfish: str = "stockfish"
    """The program, by name or path."""
    hash_mib: PositiveInt = 16
    """Stockfish's memory."""
    seed: int = Field(default=0, ge=0)
    """Of the problems."""


class Chess:
    """One board. `columns`: `fen`, the position to begin with, and `seed`, of the random opponent."""

    def __init__(self, **settings: Any) -> None:
        import chess

        self._settings = ChessSettings(**settings)
        self._board = chess.Board()
        self._side = chess.WHITE
        self._engine: chess.engine.SimpleEngine | None = None
        self._opponent = random.Random(0)
        self._moves = self._errors = 0
        self._done = False

    def reset(self, problem: Mapping[str, Any]) -> str:
        import chess

        self._board = chess.Board(problem["fen"])
        if not self._board.is_valid() or self._board.is_game_over():
            raise ValueError(f"the position {problem['fen']!r} is not valid, or the game is over")
        self._side = self._board.turn
        self._opponent = random.Random(int(problem.get("seed", 0)))
        self._moves = self._errors = 0
        self._done = False
        return self._shown()

    def step(self, action: str) -> StepResult:
        if self._done:
            return StepResult.refused("The game is over.", done=True)
        verb, _, rest = action.partition(" ")
        if verb == "legal_moves":
            return StepResult(observation=" ".join(sorted(move.uci() for move in self._board.legal_moves)))
        if verb != "move":
            return StepResult.refused(f"There is no action {verb[:_SHOWN_CHARS]!r}; there are move and legal_moves.")
        move = self._read(rest.strip())
        if move is None:
            self._errors += 1
            self._done = self._errors >= self._settings.max_errors
            end = " That was one too many; the game is over." if self._done else ""
            said = rest.strip()[:_SHOWN_CHARS]
            return StepResult.refused(
                f"{said!r} is not a legal move here. Write it as e2e4, or as Nf3.{end}", done=self._done
            )
        self._board.push(move)
        self._moves += 1
        if self._settings.task == "mate_in_one":
            self._done, mate = True, self._board.is_checkmate()
            return StepResult(
                observation="Checkmate." if mate else "That is no mate.", reward=1.0 if mate else 0.0, done=True
            )
        return self._answered()

    def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.quit()

    def _answered(self) -> StepResult:
        """The opponent's move, if the game goes on, and where it stands."""
        if (ended := self._ended()) is not None:
            return ended
        reply = self._reply()
        said = self._board.san(reply)
        self._board.push(reply)
        if (ended := self._ended(said)) is not None:
            return ended
        if self._moves >= self._settings.max_moves:
            self._done = True
            worth = self._judged()
            observation = f"Your opponent plays {said}. The game is stopped and judged: {worth:.2f} points."
            return StepResult(observation=observation, reward=worth, done=True)
        return StepResult(observation=f"Your opponent plays {said}.\n{self._shown()}")

    def _ended(self, said: str | None = None) -> StepResult | None:
        outcome = self._board.outcome(claim_draw=True)
        if outcome is None:
            return None
        self._done = True
        won = None if outcome.winner is None else outcome.winner == self._side
        words = {True: "You win", None: "Draw", False: "You lose"}[won]
        reason = outcome.termination.name.lower().replace("_", " ")
        answer = f"Your opponent plays {said}. " if said else ""
        return StepResult(observation=f"{answer}{words}: {reason}.", reward=_RESULTS[won], done=True)

    def _read(self, text: str) -> chess.Move | None:
        """A legal move, in coordinates or in algebraic notation."""
        import chess

        if len(text) > 10:
            return None
        for parse in (self._board.parse_uci, self._board.parse_san):
            try:
                move = parse(text)
            except ValueError:
                continue
            if move in self._board.legal_moves and move != chess.Move.null():
                return move
        return None

    def _reply(self) -> chess.Move:
        if self._settings.opponent == "random":
            return self._opponent.choice(sorted(self._board.legal_moves, key=lambda move: move.uci()))
        import chess.engine

        played = self._stockfish().play(
            self._board, chess.engine.Limit(nodes=self._settings.opponent_nodes), game=object()
        )
        assert played.move is not None
        return played.move

    def _judged(self) -> float:
        """Points that the agent can expect, between 0 and 1."""
        if self._settings.judge == "draw":
            return 0.5
        import chess.engine

        limit = chess.engine.Limit(nodes=self._settings.judge_nodes)
        score = self._stockfish().analyse(self._board, limit, game=object()).get("score")
        assert score is not None
        return score.wdl(model="sf", ply=self._board.ply()).pov(self._side).expectation()

    def _stockfish(self) -> chess.engine.SimpleEngine:
        if self._engine is None:
            import chess.engine

            self._engine = chess.engine.SimpleEngine.popen_uci(_program(self._settings.stockfish))
            self._engine.configure({"Threads": 1, "Hash": self._settings.hash_mib})
        return self._engine

    def _shown(self) -> str:
        side = "White" if self._side else "Black"
        return f"You play {side}; it is your move.\n{self._board}\nFEN: {self._board.fen()}"


def move(move: str) -> str:
    """Play a move.

    Args:
        move: From square to square, as e2e4 or e7e8q, or in algebraic notation, as Nf3 or O-O.
    """
    return f"move {move}"


def legal_moves() -> str:
    """List the moves that can be played."""
    return "legal_moves"


def _problems(settings: ChessSettings, split: Literal["train", "eval"]) -> Iterator[dict[str, Any]]:
    """Without end; every problem has a seed of its own."""
    draws = random.Random(f"chess/{settings.seed}/{settings.task}/{split}")
    while True:
        seed = draws.randrange(2**31)
        if settings.task == "mate_in_one":
            if (fen := _mate_in_one(seed)) is not None:
                yield {"question": "Find the move that gives checkmate.", "fen": fen, "seed": seed}
        else:
            yield {"question": "Win this game.", "fen": _opening(seed, settings.opening_moves), "seed": seed}


def _mate_in_one(seed: int) -> str | None:
    """The first position of a random game in which a move mates; None if there is none in it."""
    import chess

    draws, board = random.Random(seed), chess.Board()
    while not board.is_game_over() and board.ply() < _LONGEST_GAME:
        moves = list(board.legal_moves)
        if any(_mates(board, move) for move in moves):
            return board.fen()
        board.push(draws.choice(moves))
    return None


def _mates(board: chess.Board, move: chess.Move) -> bool:
    if not board.gives_check(move):
        return False
    board.push(move)
    mate = board.is_checkmate()
    board.pop()
    return mate


def _opening(seed: int, most: int) -> str:
    """A position after some random moves, from which a game can be played."""
    import chess

    draws = random.Random(seed)
    while True:
        board = chess.Board()
        for _ in range(draws.randint(0, most)):
            board.push(draws.choice(list(board.legal_moves)))
            if board.is_game_over():
                break
        if not board.is_game_over():
            return board.fen()


def _program(name: str) -> str:
    """Stockfish. Debian puts it where shells of root do not look. Raises `ConfigError` if it is not there."""
    found = shutil.which(name) or (shutil.which(_DEBIAN) if name == "stockfish" else None)
    if found is None:
        raise ConfigError(
            f"environment 'chess': there is no program {name!r}; `apt-get install stockfish`, or name it by the "
            "setting `stockfish`"
        )
    return found


def _check(settings: ChessSettings) -> None:
    try:
        import chess  # noqa: F401
    except ImportError as error:
        raise ConfigError("environment 'chess' needs python-chess: `pip install chess` (or `make envs`)") from error
    if settings.task == "game" and "stockfish" in (settings.opponent, settings.judge):
        _program(settings.stockfish)


KIND = EnvironmentKind(
    name="chess",
    make=Chess,
    settings=ChessSettings,
    actions=(move, legal_moves),
    problems=_problems,
    endless=True,
    prompt="You play chess. Call the tool `move` to play a move; `legal_moves` lists what can be played.",
    check=_check,
    packages=("chess",),
)
