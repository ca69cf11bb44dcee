"""A dataset is prepared once, and an error names what cannot be used."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from agentfly_lib.configs import ArithmeticDataConfig, FilesDataConfig, HubDataConfig
from agentfly_lib.data import load_problems, prepare_dataset, read_report
from agentfly_lib.data import prepare as prepare_module
from agentfly_lib.errors import DataError, ShardError


def question_rows(*numbers, **columns):
    return [{"question": f"What is {number} + 1?", "answer": str(number + 1), **columns} for number in numbers]


def questions(ref, split):
    return [problem.messages[0]["content"] for problem in load_problems(ref, split)]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def must_not_read(monkeypatch):
    """From here on nothing may be prepared again."""

    def arm():
        monkeypatch.setattr(prepare_module, "_prepare", lambda *_: pytest.fail("prepared again"))

    return arm


class TestFiles:
    def test_two_files(self, jsonl, cache):
        train, evaluation = jsonl(question_rows(1, 2, 3), "t.jsonl"), jsonl(question_rows(7, 8), "e.jsonl")
        ref = prepare_dataset(FilesDataConfig(train=train, eval=evaluation), cache)
        assert questions(ref, "train") == ["What is 1 + 1?", "What is 2 + 1?", "What is 3 + 1?"]
        assert questions(ref, "eval") == ["What is 7 + 1?", "What is 8 + 1?"]
        assert ref.path == cache / ref.fingerprint
        assert (ref.train_rows, ref.eval_rows, ref.columns, ref.duplicates) == (3, 2, ("answer",), 0)
        assert sorted(os.listdir(ref.path)) == ["eval.arrow", "report.json", "train.arrow"]

    def test_one_file_is_split_by_seed(self, jsonl, cache):
        path = jsonl(question_rows(*range(50)))
        refs = [prepare_dataset(FilesDataConfig(train=path, eval_fraction=0.2, seed=seed), cache) for seed in (0, 1)]
        for ref in refs:
            assert (ref.train_rows, ref.eval_rows) == (40, 10)
            assert not set(questions(ref, "train")) & set(questions(ref, "eval"))
        assert questions(refs[0], "eval") != questions(refs[1], "eval")

    def test_limits_take_the_first_after_a_seeded_shuffle(self, jsonl, cache):
        train, evaluation = jsonl(question_rows(*range(50)), "t.jsonl"), jsonl(question_rows(*range(90, 99)), "e.jsonl")
        small, large = (
            prepare_dataset(FilesDataConfig(train=train, eval=evaluation, train_problems=n, eval_problems=n), cache)
            for n in (3, 5)
        )
        for split in ("train", "eval"):
            assert questions(small, split) == questions(large, split)[:3]

    def test_only_columns_that_every_row_has_can_be_asked_for(self, jsonl, cache):
        train = jsonl([*question_rows(1, hint="h", level=1), *question_rows(2, hint="h")], "t.jsonl")
        evaluation = jsonl(question_rows(3, hint=None, extra=1), "e.jsonl")
        assert prepare_dataset(FilesDataConfig(train=train, eval=evaluation), cache).columns == ("answer", "hint")

    def test_free_columns_keep_their_values_and_shapes(self, jsonl, cache):
        rows = [
            {"question": "a", "tests": [{"in": 1}]},
            {"question": "b", "tests": {"out": [None, "x"]}},
            {"question": "c", "tests": 3.5},
        ]
        ref = prepare_dataset(FilesDataConfig(train=jsonl(rows), eval=jsonl(question_rows(1), "e.jsonl")), cache)
        assert [problem.columns["tests"] for problem in load_problems(ref, "train")] == [row["tests"] for row in rows]

    def test_parquet_gives_the_same_problems_as_jsonl(self, jsonl, cache, tmp_path):
        rows, evaluation = question_rows(1, 2), jsonl(question_rows(5), "e.jsonl")
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
        refs = [
            prepare_dataset(FilesDataConfig(train=path, eval=evaluation), cache)
            for path in (jsonl(rows), tmp_path / "t.parquet")
        ]
        assert list(load_problems(refs[0], "train")) == list(load_problems(refs[1], "train"))


class TestDuplicates:
    def test_held_out_rows_leave_training_and_are_reported(self, jsonl, cache, caplog):
        train = jsonl([*question_rows(1, 2, 3), *question_rows(2, note="again")], "t.jsonl")
        evaluation = jsonl(question_rows(9, 2), "e.jsonl")
        with caplog.at_level(logging.WARNING):
            ref = prepare_dataset(FilesDataConfig(train=train, eval=evaluation), cache)
        assert questions(ref, "train") == ["What is 1 + 1?", "What is 3 + 1?"]
        assert ref.duplicates == 2
        assert read_report(ref).leaked_rows == (
            f"{train} line 2 = {evaluation} line 2",
            f"{train} line 4 = {evaluation} line 2",
        )
        assert "2 training rows are also among the held-out rows" in caplog.text

    def test_repeats_in_training_are_reported_and_stay(self, jsonl, cache):
        train = jsonl([*question_rows(1, 2), *question_rows(1)], "t.jsonl")
        report = read_report(
            prepare_dataset(FilesDataConfig(train=train, eval=jsonl(question_rows(9), "e.jsonl")), cache)
        )
        assert (report.repeated, report.train.rows) == (1, 3)
        assert report.repeated_rows == (f"{train} line 3 = {train} line 1",)

    def test_a_training_file_that_is_the_held_out_file(self, jsonl, cache):
        path = jsonl(question_rows(1, 2))
        with pytest.raises(DataError, match="all 2 training rows are among the held-out rows too"):
            prepare_dataset(FilesDataConfig(train=path, eval=path), cache)


class TestCache:
    def test_a_second_call_finds_the_first(self, jsonl, cache, must_not_read):
        config = FilesDataConfig(train=jsonl(question_rows(1, 2, 3)))
        ref = prepare_dataset(config, cache)
        must_not_read()
        assert prepare_dataset(config, cache) == ref

    def test_content_counts_and_paths_do_not(self, jsonl, cache):
        def fingerprint(rows, name, **changes):
            return prepare_dataset(FilesDataConfig(train=jsonl(rows, name), **changes), cache).fingerprint

        base = fingerprint(question_rows(1, 2), "a.jsonl")
        assert fingerprint(question_rows(1, 2), "b.jsonl") == base
        assert fingerprint(question_rows(1, 2), "a.jsonl", max_row_errors=1) == base
        assert fingerprint(question_rows(1, 3), "a.jsonl") != base
        assert fingerprint(question_rows(1, 2), "a.jsonl", seed=1) != base

    def test_the_suffix_counts_because_it_says_how_to_read(self, tmp_path, cache):
        for name in ("a.csv", "a.tsv"):
            (tmp_path / name).write_text("question\nq\nr\n")
        refs = [prepare_dataset(FilesDataConfig(train=tmp_path / name), cache) for name in ("a.csv", "a.tsv")]
        assert refs[0].fingerprint != refs[1].fingerprint

    @pytest.mark.parametrize("damage", ["missing", "short", "no report"])
    def test_a_folder_that_is_not_whole_is_made_again(self, jsonl, cache, damage):
        config = FilesDataConfig(train=jsonl(question_rows(1, 2, 3)))
        ref = prepare_dataset(config, cache)
        if damage == "missing":
            (ref.path / "train.arrow").unlink()
        elif damage == "short":
            (ref.path / "train.arrow").write_bytes(b"")
        else:
            (ref.path / "report.json").write_text("{")
        assert prepare_dataset(config, cache) == ref
        assert len(load_problems(ref, "train")) == 2

    def test_what_a_killed_process_left_is_no_obstacle(self, jsonl, cache):
        config = FilesDataConfig(train=jsonl(question_rows(1, 2, 3)))
        ref = prepare_dataset(config, cache)
        ref.path.rename(cache / f".{ref.fingerprint}.tmp")
        assert prepare_dataset(config, cache) == ref
        assert not list(cache.glob("*.tmp"))

    def test_a_changed_byte_in_the_cache_is_noticed_when_it_is_read(self, jsonl, cache):
        ref = prepare_dataset(FilesDataConfig(train=jsonl(question_rows(1, 2, 3))), cache)
        data = bytearray((ref.path / "train.arrow").read_bytes())
        data[len(data) // 2] ^= 1
        (ref.path / "train.arrow").write_bytes(data)
        with pytest.raises(ShardError, match=r"train\.arrow does not match its checksum"):
            load_problems(ref, "train")

    def test_processes_that_want_the_same_dataset_at_once(self, jsonl, cache):
        config = FilesDataConfig(train=jsonl(question_rows(*range(200))))
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            refs = pool.starmap(prepare_dataset, [(config, cache)] * 4)
        assert len({ref.fingerprint for ref in refs}) == 1
        assert len(load_problems(refs[0], "train")) == 180


class TestErrors:
    def test_a_missing_file(self, tmp_path, cache):
        with pytest.raises(DataError, match=r"none\.jsonl does not exist \(looked from .*check the path in the recipe"):
            prepare_dataset(FilesDataConfig(train=tmp_path / "none.jsonl"), cache)

    def test_a_pipe_is_not_waited_for(self, tmp_path, cache):
        os.mkfifo(tmp_path / "pipe.jsonl")
        with pytest.raises(DataError, match=r"pipe\.jsonl is not a file"):
            prepare_dataset(FilesDataConfig(train=tmp_path / "pipe.jsonl"), cache)

    def test_an_empty_held_out_file(self, jsonl, cache):
        with pytest.raises(DataError, match=r"e\.jsonl has no rows"):
            prepare_dataset(FilesDataConfig(train=jsonl(question_rows(1)), eval=jsonl([], "e.jsonl")), cache)

    def test_one_row_cannot_be_split(self, jsonl, cache):
        with pytest.raises(DataError, match="has 1 row; at least 2 are needed"):
            prepare_dataset(FilesDataConfig(train=jsonl(question_rows(1))), cache)

    def test_bad_rows_leave_nothing_in_the_cache(self, jsonl, cache):
        path = jsonl([*question_rows(1), '{"question": ', {"quest": "q"}, {"question": "q", "reward": 1}])
        with pytest.raises(DataError) as error:
            prepare_dataset(FilesDataConfig(train=path, max_row_errors=2), cache)
        lines = str(error.value).splitlines()
        assert lines[0] == f"{path}: 3 of 4 rows cannot be used"
        assert lines[1].startswith(f"  - {path} line 2: not valid JSON")
        assert lines[2].startswith(f"  - {path} line 3: expected the column 'question'")
        assert lines[3] == "  ... and 1 more"
        assert not [name for name in os.listdir(cache) if not name.endswith(".lock")]


def test_generated_problems(cache, must_not_read):
    config = ArithmeticDataConfig(train_problems=300, eval_problems=20)
    ref = prepare_dataset(config, cache)
    assert (ref.train_rows, ref.eval_rows, ref.columns, ref.duplicates) == (300, 20, ("answer",), 0)
    more = prepare_dataset(config.model_copy(update={"train_problems": 400}), cache)
    assert list(load_problems(more, "eval")) == list(load_problems(ref, "eval"))
    must_not_read()
    assert prepare_dataset(config, cache) == ref


class TestHub:
    @pytest.fixture
    def hub_folder(self, tmp_path, monkeypatch):
        """A dataset directory as `datasets` knows it, with no network."""
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        folder = tmp_path / "hub"
        folder.mkdir()
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in question_rows(*range(20))))
        (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in question_rows(50, 51)))
        return folder

    def test_splits_by_name(self, hub_folder, cache, must_not_read):
        config = HubDataConfig(path=str(hub_folder), eval_split="test")
        ref = prepare_dataset(config, cache)
        assert (ref.train_rows, ref.eval_rows, ref.columns) == (20, 2, ("answer",))
        assert questions(ref, "eval") == ["What is 50 + 1?", "What is 51 + 1?"]
        must_not_read()
        assert prepare_dataset(config, cache) == ref

    def test_a_fraction_is_held_out_without_a_split(self, hub_folder, cache):
        ref = prepare_dataset(HubDataConfig(path=str(hub_folder), eval_fraction=0.25), cache)
        assert (ref.train_rows, ref.eval_rows) == (15, 5)

    def test_an_unknown_split_or_dataset(self, hub_folder, cache):
        with pytest.raises(DataError, match=r"cannot load the dataset .*\[dev\]: .*check data\.path"):
            prepare_dataset(HubDataConfig(path=str(hub_folder), eval_split="dev"), cache)
        with pytest.raises(DataError, match="cannot load the dataset nobody/nothing"):
            prepare_dataset(HubDataConfig(path="nobody/nothing"), cache)


def test_importing_loads_nothing_heavy():
    heavy = ["torch", "transformers", "datasets", "ray", "vllm", "deepspeed", "mlflow", "prefect", "pandas"]
    code = (
        f"import sys, agentfly_lib.data, agentfly_lib.store; print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
