"""Exact match and F1 against a table worked out by hand from the definition of SQuAD's evaluation."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.envs.search.scoring import normalize_answer
from agentfly_lib.rewards import exact_match, token_f1
from agentfly_lib.rewards.qa import stated_answer


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower", "eiffel tower"),
        ("  an   apple\n", "apple"),
        ("U.S.A.", "usa"),
        ("rock-n-roll", "rocknroll"),
        ("a", ""),
        ("Thea", "thea"),
        ("Saint-Émile's", "saintémiles"),
        ("the a an", ""),
        ("$1,000", "1000"),
    ],
)
def test_normal_forms(text, normal):
    assert normalize_answer(text) == normal


@given(st.text(max_size=60))
def test_normalisation_is_done_once(text):
    once = normalize_answer(text)
    assert normalize_answer(once) == once
    assert not re.search(r"\s\s|^\s|\s$", once)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Paris", "Paris"),
        ("I think.\n<answer> Paris </answer> Done.", "Paris"),
        ("<answer>Rome</answer> no, <answer>Paris</answer>", "Paris"),
        ("<answer>Rome</answer> and <answer>cut", "Rome"),
        ("<answer>cut", "<answer>cut"),
        ("Thought: I know.\nFinal Answer: Paris\nBye", "Paris"),
        ("The answer is: **Paris**", "Paris"),
        ("the answer is Rome. No, the answer is Paris", "Paris"),
        ("", ""),
    ],
)
def test_where_an_answer_is_stated(text, stated):
    assert stated_answer(text) == stated


@pytest.mark.parametrize(
    ("response", "answer", "exact", "f1"),
    [
        ("Paris", "Paris", 1, 1),
        ("the paris.", "Paris", 1, 1),
        ("London", "Paris", 0, 0),
        # 2 common of 3 given and 2 right: precision 2/3, recall 1, F1 = 2 * 2/3 / (5/3) = 4/5
        ("the big Eiffel Tower", "Eiffel Tower", 0, 0.8),
        # 1 common of 1 and 3: precision 1, recall 1/3, F1 = 1/2
        ("Barack", "Barack Hussein Obama", 0, 0.5),
        # each word counts as often as both have it: 1 common of 3 and 1, F1 = 2 * 1 / 4
        ("very very very", "very", 0, 0.5),
        # 2 common ("b", "b") of 3 and 4: F1 = 4/7
        ("b b c", "b b d e", 0, 4 / 7),
        ("<answer>Denver Broncos</answer>", "The Denver Broncos", 1, 1),
        ("nothing", ["Rome", "Paris"], 0, 0),
        ("Paris, France", ["Rome", "Paris"], 0, 2 / 3),  # best of 0 and 1 common of 2 and 1
        ("rome", ["Rome", "Paris"], 1, 1),
        ("the", "a", 1, 1),  # both are empty once normalised
        ("", "Paris", 0, 0),
        ("42", 42, 1, 1),
    ],
)
def test_worked_out_by_hand(response, answer, exact, f1):
    assert exact_match(final_response=response, answer=answer) == exact
    assert token_f1(final_response=response, answer=answer) == pytest.approx(f1)


def test_no_right_answer_cannot_be_scored():
    assert exact_match(final_response="x", answer=[]) is None
    assert token_f1(final_response="x", answer=[]) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_and_exact_match_means_one(one, other):
    texts = [f"<answer>{text.replace('<', '')}</answer>" for text in (one, other)]
    plain = [stated_answer(text) for text in texts]
    forward = token_f1(final_response=texts[0], answer=plain[1])
    assert forward == pytest.approx(token_f1(final_response=texts[1], answer=plain[0]))
    assert 0 <= forward <= 1
    if exact_match(final_response=texts[0], answer=plain[1]):
        assert forward == 1
