"""Names and values that MLflow stores faithfully."""

from __future__ import annotations

import math
import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.tracking.metrics import (
    MAX_NAME_LENGTH,
    NameTable,
    finite_metrics,
    valid_name,
)


def mlflow_takes(name: str) -> bool:
    """MLflow's documented rule, written down independently."""
    normal = posixpath.normpath(name) == name and name != "." and not name.startswith(("..", "/"))
    return bool(re.fullmatch(r"[A-Za-z0-9_.\-/: ]+", name)) and normal and len(name) <= 250


def test_cleaning_reads_well():
    table = NameTable()

    assert table.clean("eval/pass@1/mean") == "eval/pass_at_1/mean"
    assert table.clean("train/reward (raw)/mean") == "train/reward _raw_/mean"
    assert table.clean("//a/./b") == "a/b"
    assert table.clean("..a/b") == "_a/b"
    assert table.clean("train/reward/mean") == "train/reward/mean"


def test_two_names_never_become_one():
    renamed = NameTable().rename({"a[b]": 1.0, "a(b)": 2.0, "a_b_": 3.0})

    assert renamed["a_b_"] == 3.0
    assert len(renamed) == 3
    assert sorted(renamed.values()) == [1.0, 2.0, 3.0]


def test_a_name_keeps_its_clean_form_when_a_valid_one_comes_later():
    table = NameTable()
    first = table.clean("x@y")

    later = table.rename({"x_at_y": 1.0, "x@y": 2.0})

    assert first == "x_at_y"
    assert later["x_at_y"] == 2.0
    assert len(later) == 2


@given(st.lists(st.text(min_size=0, max_size=300), unique=True, max_size=30))
def test_whatever_the_names_mlflow_takes_them_and_none_is_lost(names: list[str]):
    table = NameTable()

    renamed = table.rename({name: float(index) for index, name in enumerate(names)})

    assert len(renamed) == len(names)
    assert all(mlflow_takes(name) and valid_name(name) for name in renamed)
    assert all(len(name) <= MAX_NAME_LENGTH for name in renamed)
    assert table.rename(dict.fromkeys(names, 0.0)).keys() == renamed.keys()


def test_values_that_are_not_finite_are_split_off():
    finite = finite_metrics({"a": 1, "b": math.nan, "c": math.inf, "d": -math.inf, "e": -0.5})

    assert finite.values == {"a": 1.0, "e": -0.5}
    assert finite.nonfinite == ("b", "c", "d")
