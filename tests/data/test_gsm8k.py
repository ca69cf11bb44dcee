"""GSM8K in its published form."""

from __future__ import annotations

import re

import pytest

from agentfly_lib.configs import Gsm8kDataConfig
from agentfly_lib.data import load_problems, prepare_dataset
from agentfly_lib.data.gsm8k import read_gsm8k
from agentfly_lib.errors import DataError


def answer(jsonl, text):
    (row,) = read_gsm8k(jsonl([{"question": "q", "answer": text}]))
    return row


@pytest.mark.parametrize(
    ("text", "expected", "solution"),
    [
        ("Half of 48 is 24.\n48 + 24 = 72\n#### 72", "72", "Half of 48 is 24.\n48 + 24 = 72"),
        ("#### 5", "5", ""),
        ("x\n#### 1,234,567", "1234567", "x"),
        ("x\n#### -3", "-3", "x"),
        ("x\n#### 2.50\n", "2.50", "x"),
        ("x\n#### .5", ".5", "x"),
        ("x\n#### " + "1" * 50_000, "1" * 50_000, "x"),
        ("a #### 1\nb\n#### 2", "2", "a #### 1\nb"),
    ],
)
def test_the_last_line_is_the_answer(jsonl, text, expected, solution):
    assert answer(jsonl, text).values == {"question": "q", "answer": expected, "solution": solution}


@pytest.mark.parametrize(
    "text",
    ["72", "#### ", "#### many", "#### 5,", "#### " + "1" * 50_000 + "x", "x #### 72", "#### 72\nand more", None, 72],
)
def test_an_answer_without_that_line_is_named(jsonl, text):
    assert re.search(
        r"line 1: column 'answer': expected text whose last line is '#### NUMBER'", str(answer(jsonl, text))
    )


def test_bad_rows_stop_the_preparation(jsonl, tmp_path):
    good, bad = jsonl([{"question": "q", "answer": "#### 1"}], "a.jsonl"), jsonl([{"question": "q"}], "b.jsonl")
    with pytest.raises(DataError, match=r"b\.jsonl line 1: column 'answer'"):
        prepare_dataset(Gsm8kDataConfig(train=good, eval=bad), tmp_path / "cache")


def test_the_real_files(shared_data, tmp_path):
    folder = shared_data / "gsm8k"
    ref = prepare_dataset(Gsm8kDataConfig(train=folder / "train.jsonl", eval=folder / "test.jsonl"), tmp_path / "cache")
    assert (ref.train_rows, ref.eval_rows, ref.duplicates) == (7473, 1319, 0)
    assert ref.columns == ("answer", "solution")
    train, evaluation = load_problems(ref, "train"), load_problems(ref, "eval")
    assert train[0].columns["answer"] == "72"
    assert train[0].messages[0]["content"].startswith("Natalia sold clips to 48 of her friends")
    assert evaluation[0].columns["answer"] == "18"  # Janet's ducks
    for problem in [*train, *evaluation]:
        float(problem.columns["answer"])
        assert "####" not in problem.columns["solution"]
