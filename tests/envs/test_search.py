"""Search: the index against a BM25 computed another way, the service and its deaths, batching, questions, episodes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from agentfly_lib.envs import get_environment
from agentfly_lib.envs.search import (
    KIND,
    GeneratedCorpus,
    IndexClient,
    IndexConfig,
    IndexService,
    IndexSpec,
    Search,
    SearchSettings,
    shared_service,
)
from agentfly_lib.envs.search.bm25 import PACKAGES, Bm25Index
from agentfly_lib.envs.search.corpus import Document, FileCorpus
from agentfly_lib.envs.search.generated import generate_corpus, generate_questions
from agentfly_lib.envs.search.index import Found, Index, open_index
from agentfly_lib.envs.search.scoring import exact_match, token_f1
from agentfly_lib.envs.search.server import Batcher
from agentfly_lib.envs.search.settings import check
from agentfly_lib.errors import ConfigError, DataError, InfrastructureError, ModelError
from agentfly_lib.resources import ResourceEngine
from agentfly_lib.tools import ToolCall, ToolContext, execute_calls
from agentfly_lib.tools.web_search import web_search
from agentfly_lib.types import Problem

for package in PACKAGES:
    pytest.importorskip(package)

STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
"""Lucene's."""


def plain_bm25(texts: Sequence[str], query: str, k1: float = 0.9, b: float = 0.4) -> list[tuple[int, float]]:
    """Every matching document with its score, from the formula (Lucene's variant), for words that have no endings."""

    ignored = set(STOP_WORDS.split())

    def words(text: str) -> list[str]:
        return [word for word in re.findall(r"\w\w+", text.lower()) if word not in ignored]

    documents = [Counter(words(text)) for text in texts]
    holders = Counter(word for found in documents for word in found)
    mean = sum(found.total() for found in documents) / len(documents)
    scored = []
    for number, found in enumerate(documents):
        score = 0.0
        for word in words(query):
            if found[word]:
                idf = math.log(1 + (len(documents) - holders[word] + 0.5) / (holders[word] + 0.5))
                score += idf * found[word] / (found[word] + k1 * (1 - b + b * found.total() / mean))
        if score:
            scored.append((number, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


class TestBm25:
    TEXTS = ("Big cat on a mat", "the cat cat fox", "fox", "dog dog dog", "of the and")

    @pytest.mark.parametrize("query", ["cat", "the cat", "cat fox", "fox dog dog", "mat mat big"])
    def test_scores_are_those_of_the_formula(self, query):
        expected = plain_bm25(self.TEXTS, query)
        found = Bm25Index(self.TEXTS).top(query, 10)
        assert [number for number, _ in found] == [number for number, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-5)

    def test_stems(self):
        assert [number for number, _ in Bm25Index(["running shoe", "run", "ran"]).top("runs shoes", 5)] == [0, 1]

    @pytest.mark.parametrize("query", ["", " ", "the of", "zebra", "🦊", "\x00", "\udcff", "a" * 100_000])
    def test_nothing_is_found_for(self, query):
        assert Bm25Index(self.TEXTS).top(query, 3) == []

    @pytest.mark.parametrize("texts", [["", ""], ["the"], []])
    def test_nothing_to_be_found(self, texts):
        assert Bm25Index(texts).top("cat", 3) == []

    def test_equal_scores_keep_the_order(self):
        index = Bm25Index(["cat"] * 50)
        assert [number for number, _ in index.top("cat", 7)] == list(range(7))

    def test_recall_on_the_generated_corpus_is_that_of_the_plain_one(self):
        """Names are not English, so a stemmer may join two of them; it hardly ever does."""
        config = GeneratedCorpus(towns=60)
        documents = generate_corpus(config)
        texts = [document.indexed_text for document in documents]
        index, ours, plain, questions = Bm25Index(texts), 0, 0, generate_questions(config)
        for row in questions:
            wanted = row["sources"][0]
            ours += wanted in {documents[number].id for number, _ in index.top(row["question"], 3)}
            plain += wanted in {documents[number].id for number, _ in plain_bm25(texts, row["question"])[:3]}
        assert plain == len(questions)
        assert ours >= 0.99 * len(questions)

    def test_threads_may_share_one(self):
        index, wrong = Bm25Index([f"word{n} common" for n in range(200)]), []

        def ask(first: int) -> None:
            for number in range(first, 200, 8):
                if index.top(f"word{number}", 1)[0][0] != number:
                    wrong.append(number)

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestCorpus:
    def test_rows_are_read_where_they_lie(self, tmp_path):
        path = tmp_path / "c.jsonl"
        path.write_text('\n{"id": 1, "text": "é"}\n\n{"contents": "b", "title": "B", "url": "u"}')
        corpus = FileCorpus(path)
        assert list(corpus) == [Document(id="1", title="", text="é"), Document(id="u", title="B", text="b")]
        assert corpus[-1].indexed_text == "B\nb"
        assert corpus[:1] == [corpus[0]]
        with pytest.raises(IndexError):
            _ = corpus[2]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "is empty"),
            (b"\n \n", "is empty"),
            (b'{"text": "a"}\n[1]', "line 2: a row needs a text"),
            (b'{"text": "a"}\n\n{"text"', "line 3: this is not JSON"),
            (b'{"text": "\xff"}', "line 1: this is not UTF-8"),
            (b"[" * 100_000, "line 1: this is not JSON"),
        ],
    )
    def test_files_that_cannot_be_used(self, tmp_path, data, message):
        path = tmp_path / "c.jsonl"
        path.write_bytes(data)
        with pytest.raises(DataError, match=message):
            list(FileCorpus(path))

    def test_one_that_is_not_there(self, tmp_path):
        with pytest.raises(DataError, match="cannot read the corpus"):
            FileCorpus(tmp_path / "none")
        with pytest.raises(ConfigError, match=r"there is no .*none"):
            IndexSpec(config=IndexConfig(corpus=tmp_path / "none")).check()


class TestQuestions:
    def test_generated_ones_are_the_same_every_time_and_split(self):
        settings = SearchSettings()
        train, held_out = (list(KIND.problems(settings, split)) for split in ("train", "eval"))
        assert (len(train), len(held_out)) == (700, 100)
        assert train == list(KIND.problems(settings, "train"))
        assert not {row["id"] for row in train} & {row["id"] for row in held_out}
        other = SearchSettings(index={"generated": {"seed": 1}})
        assert train != list(KIND.problems(other, "train"))

    def test_every_answer_stands_in_its_last_source(self):
        config = GeneratedCorpus(towns=50)
        documents = {document.id: document.text for document in generate_corpus(config)}
        assert all(row["answer"][0] in documents[row["sources"][-1]] for row in generate_questions(config))

    def test_files(self, tmp_path):
        rows = [
            {"question": "Who?", "answer": "I"},
            {"id": "x", "question": "When?", "golden_answers": ["1", "2"], "level": "hard"},
            {"question": "How many?", "answer": 3},
        ]
        paths = {name: tmp_path / f"{name}.jsonl" for name in ("corpus", "train", "eval")}
        paths["corpus"].write_text('{"text": "a"}')
        for name in ("train", "eval"):
            paths[name].write_text("\n".join(map(json.dumps, rows)))
        settings = SearchSettings(index={"corpus": paths["corpus"]}, train=paths["train"], eval=paths["eval"])
        check(settings)
        assert list(KIND.problems(settings, "eval")) == [
            {"id": "eval-1", "question": "Who?", "answer": ["I"]},
            {"id": "x", "question": "When?", "answer": ["1", "2"], "level": "hard"},
            {"id": "eval-3", "question": "How many?", "answer": ["3"]},
        ]
        paths["train"].write_text('{"question": "Who?"}')
        with pytest.raises(DataError, match=r"train\.jsonl, line 1: a row needs 'answer'"):
            list(KIND.problems(settings, "train"))

    def test_files_belong_together(self, tmp_path):
        with pytest.raises(ValueError, match="train and eval belong together"):
            SearchSettings(train=tmp_path / "t")
        with pytest.raises(ValueError, match="belong together: give all three"):
            SearchSettings(train=tmp_path / "t", eval=tmp_path / "e")


def test_answers_are_compared():
    assert exact_match("The  Eiffel tower!", ["no", "eiffel Tower"]) == 1.0
    assert exact_match("tower", ["Eiffel Tower"]) == 0.0
    assert token_f1("the big tower", ["Eiffel Tower", "x"]) == pytest.approx(0.5)
    assert token_f1("x", []) == 0.0


class SlowIndex(Index):
    """Knows every query as its only document, and searches when it is let."""

    def __init__(self) -> None:
        self.go, self.begun, self.asked = threading.Event(), threading.Event(), []

    def search(self, queries: Sequence[str], count: int) -> list[list[Found]]:
        self.begun.set()
        assert self.go.wait(60)
        self.asked.append(list(queries))
        if "bad" in queries:
            raise ValueError("bad")
        return [[Found(document=Document(id=query, title="", text=""), score=1.0)] * count for query in queries]


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


class TestBatching:
    async def test_what_waits_is_searched_together_and_each_gets_his_own(self):
        index = SlowIndex()
        batcher = Batcher(index)
        first = asyncio.create_task(batcher.search(["a"], 1))
        await until(index.begun.is_set)
        others = [asyncio.create_task(batcher.search([f"{n}", f"{n}'"], n)) for n in (1, 2, 3)]
        gone = asyncio.create_task(batcher.search(["gone"], 1))
        await asyncio.sleep(0)
        gone.cancel()
        index.go.set()
        assert [hit.document.id for hit in (await first)[0]] == ["a"]
        for n, task in zip((1, 2, 3), others, strict=True):
            assert [[hit.document.id for hit in row] for row in await task] == [[f"{n}"] * n, [f"{n}'"] * n]
        assert index.asked == [["a"], ["1", "1'", "2", "2'", "3", "3'", "gone"]]
        assert (batcher.batches, batcher.queries) == (2, 8)

    async def test_a_search_that_fails_is_its_callers(self):
        index = SlowIndex()
        index.go.set()
        batcher = Batcher(index)
        with pytest.raises(ValueError, match="bad"):
            await batcher.search(["bad"], 1)
        assert len(await batcher.search(["good"], 1)) == 1

    async def test_coroutines_share_requests(self):
        class Service:
            def __init__(self) -> None:
                self.go, self.begun, self.asked = threading.Event(), threading.Event(), []

            def search(self, queries, count):
                self.begun.set()
                assert self.go.wait(60)
                self.asked.append((list(queries), count))
                if "bad" in queries:
                    raise InfrastructureError("away", where="x")
                return [[Document(id=query, title="", text="")] * count for query in queries]

        service = Service()
        client = IndexClient(service)  # type: ignore[arg-type]
        first = asyncio.create_task(client.search("a", 1))
        await until(service.begun.is_set)
        others = [asyncio.create_task(client.search(f"{n}", n)) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        service.go.set()
        assert [hit.id for hit in await first] == ["a"]
        assert [[hit.id for hit in row] for row in await asyncio.gather(*others)] == [["1"], ["2"] * 2, ["3"] * 3]
        assert service.asked == [(["a"], 1), (["1", "2", "3"], 3)]
        with pytest.raises(InfrastructureError, match="away"):
            await client.search("bad", 1)
        assert await client.search("good", 1)


CONFIG = IndexConfig(generated=GeneratedCorpus(towns=30, seed=5))


@pytest.fixture(scope="module")
def service() -> Iterator[IndexService]:
    service = IndexService(CONFIG)
    yield service
    service.close()


class TestService:
    def test_it_answers_as_the_index_does(self, service):
        documents = generate_corpus(CONFIG.generated)
        index = Bm25Index([document.indexed_text for document in documents])
        queries = [row["question"] for row in generate_questions(CONFIG.generated)] + ["\ud800 🦊", "x" * 100_000, ""]
        found = service.search(queries, 3)
        assert found == [[documents[number] for number, _ in index.top(query, 3)] for query in queries]

    def test_it_listens_on_the_loopback_interface_only(self, service, listening):
        service.start()
        assert listening(service.pid) == {"127.0.0.1"}

    def test_a_dead_one_is_replaced(self, service):
        service.start()
        assert service.healthy()
        starts, dead = service.starts, service.pid
        os.kill(dead, signal.SIGKILL)
        service._process.wait(60)
        assert not service.healthy()
        assert len(service.search(["town"], 3)[0]) == 3
        assert service.starts == starts + 1
        assert service.pid != dead

    def test_it_ends_with_whoever_started_it(self, service):
        service.start()
        process = service._process
        process.stdin.close()
        assert process.wait(60) == 0

    def test_a_corpus_that_cannot_be_used(self, tmp_path):
        path = tmp_path / "c.jsonl"
        path.write_text('{"text": 7}')
        bad = IndexService(IndexConfig(corpus=path))
        with pytest.raises(DataError, match="line 1: a row needs a text"):
            bad.start()
        assert not bad.alive

    def test_one_that_is_not_ready_in_time(self):
        with pytest.raises(InfrastructureError, match=r"not ready within 0\.001 s"):
            IndexService(IndexConfig(start_seconds=0.001)).start()

    def test_what_is_wrong_with_a_request_is_told(self, service):
        with pytest.raises(InfrastructureError, match="status 422"):
            service.search(["a"], 1000)
        assert service.search([], 3) == []

    async def test_as_a_resource_it_is_one_for_all_trajectories(self):
        spec = IndexSpec(config=CONFIG)
        spec.check()
        async with (
            ResourceEngine() as engine,
            engine.lease(spec, trajectory="a") as one,
            engine.lease(spec, trajectory="b") as two,
        ):
            assert one is two
            hits = await asyncio.gather(*(one.search("town", count) for count in (1, 2, 3)))
            assert [len(row) for row in hits] == [1, 2, 3]
            assert await one.healthy()
            service = one._service
        assert not service.alive

    async def test_web_search_uses_it(self):
        tool = web_search.with_settings({"provider": {"type": "index", "generated": {"towns": 30, "seed": 5}}})
        tool.check()
        row = generate_questions(CONFIG.generated)[0]
        context = ToolContext(trajectory_id="g/0", group_id="g", problem=Problem(id="p", messages=()))
        call = ToolCall(id="0", name="web_search", arguments={"query": row["question"]})
        (result,) = await execute_calls([call], {"web_search": tool}, context, default_timeout=30, max_chars=100)
        assert f"<{row['sources'][0]}>" in result.observation
        await context.resources.aclose()
        shared_service(CONFIG).close()


SETTINGS = {"index": CONFIG}


class TestEpisodes:
    @pytest.fixture(scope="class")
    def search(self) -> Iterator[Search]:
        yield Search(**SETTINGS)
        shared_service(CONFIG).close()

    def test_who_reads_knows_and_who_guesses_does_not(self, search):
        rows = list(KIND.problems(SearchSettings(**SETTINGS), "train"))
        documents = {document.id: document for document in generate_corpus(CONFIG.generated)}
        known, guessed = [], []
        for row in rows:
            assert search.reset(row) == row["question"]
            hits = search.step(f"search[{row['question']}]").info["documents"]
            if row["sources"][-1] not in hits:  # who founded it stands in the town's document
                founder = documents[row["sources"][-1]].title
                assert founder in documents[hits[0]].text
                hits = search.step(f"search[{founder}]").info["documents"]
            right = row["sources"][-1] in hits
            known.append(search.step(f"answer[{row['answer'][0] if right else 'nobody'}]").reward)
            search.reset(row)
            guessed.append(search.step("answer[copper]").reward)
        assert sum(known) / len(rows) > 0.99
        assert sum(guessed) / len(rows) < 0.1

    def test_what_is_shown(self, search):
        row = next(row for row in generate_questions(CONFIG.generated) if row["id"].startswith("trade"))
        search.reset(row)
        shown = search.step(f"search[{row['question']}]")
        first = {document.id: document for document in generate_corpus(CONFIG.generated)}[row["sources"][0]]
        assert shown.observation.startswith(f"[1] {first.title}\n{first.text}\n\n[2] ")
        assert search.step("search[zzzz]").observation == "(nothing was found)"
        end = search.step(f"answer[ {row['answer'][0].upper()}! ]")
        assert (end.reward, end.done, end.observation) == (1.0, True, "Answered.")
        assert search.step("answer[x]").error == "The question is answered."

    def test_f1(self):
        search = Search(**SETTINGS, reward="f1")
        search.reset({"question": "q", "answer": ["red fox", "dog"]})
        assert search.step("answer[a big fox]").reward == pytest.approx(0.5)

    @pytest.mark.parametrize(
        "action",
        ["", "x", "search[]", "answer[ ]", "search", "\x00", "search[" + "a" * 10**6 + "]", "\ud800", "[]" * 99],
    )
    def test_what_cannot_be_done(self, search, action):
        search.reset({"question": "q", "answer": "a"})
        found = search.step(action)
        assert found.error == found.observation
        assert not found.done
        assert search.step("search[\ud800 🦊\x00]").error is None
        search.close()
        search.close()


def test_it_is_registered():
    assert get_environment("search") is KIND
    assert [action.__name__ for action in KIND.actions] == ["search", "answer"]


def test_packages_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="search needs bm25s, PyStemmer: pip install"):
        check(SearchSettings())
    with pytest.raises(ConfigError, match="faiss-cpu, torch"):
        check(SearchSettings(index={"method": {"type": "dense", "model": "m"}}))


@pytest.mark.stack
class TestDense:
    """With a small encoder of random weights: what is nearest is worked out by hand from its own states."""

    @pytest.fixture(scope="class")
    def model(self, tmp_path_factory):
        pytest.importorskip("faiss")
        torch = pytest.importorskip("torch")
        from transformers import BertConfig, BertModel, BertTokenizer

        path = tmp_path_factory.mktemp("encoder")
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "fox", "owl", "bee"]
        words += ["elk", "q", "p", ":"]
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertModel(BertConfig(vocab_size=len(words), initializer_range=1.0, **sizes)).save_pretrained(path)
        BertTokenizer(vocab={word: number for number, word in enumerate(words)}).save_pretrained(path)
        return path

    DOCUMENTS = tuple(Document(id=text, title="", text=text) for text in ("cat", "dog fox", "owl", "bee elk cat"))

    def test_the_nearest_by_the_mean_of_the_states(self, model):
        import torch
        from transformers import AutoModel, AutoTokenizer

        from agentfly_lib.envs.search.dense import DenseIndex
        from agentfly_lib.envs.search.settings import DenseConfig

        encoder, tokenizer = AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)

        def embedding(text: str):  # one at a time, so without padding
            with torch.no_grad():
                states = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            return torch.nn.functional.normalize(states.mean(0), dim=0)

        config = DenseConfig(model=model, query_prefix="q: ", passage_prefix="p: ", batch=3)
        found = DenseIndex(self.DOCUMENTS, config).search(["owl", "bee elk"], 4)
        for query, row in zip(("owl", "bee elk"), found, strict=True):
            scores = [float(embedding(f"q: {query}") @ embedding(f"p: {each.text}")) for each in self.DOCUMENTS]
            assert [number for number, _ in row] == sorted(range(4), key=lambda number: -scores[number])
            assert [score for _, score in row] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
        assert [len(row) for row in DenseIndex(self.DOCUMENTS, config).search(["owl"], 9)] == [4]

    def test_an_index_that_was_written_before(self, model, tmp_path):
        import faiss

        from agentfly_lib.envs.search.dense import DenseIndex
        from agentfly_lib.envs.search.settings import DenseConfig

        made = DenseIndex(self.DOCUMENTS, DenseConfig(model=model))
        faiss.write_index(made._index, str(tmp_path / "i"))
        read = DenseIndex(self.DOCUMENTS, DenseConfig(model=model, index=tmp_path / "i"))
        assert read.search(["cat"], 2) == made.search(["cat"], 2)
        with pytest.raises(DataError, match="has 4 vectors, and the corpus 3 rows"):
            DenseIndex(self.DOCUMENTS[:3], DenseConfig(model=model, index=tmp_path / "i"))

    @pytest.mark.slow
    def test_as_a_service(self, model, tmp_path):
        (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"text": each.text}) for each in self.DOCUMENTS))
        config = IndexConfig(corpus=tmp_path / "c.jsonl", method={"type": "dense", "model": model})
        IndexSpec(config=config).check()
        service = IndexService(config)
        assert [len(row) for row in service.search(["owl", "cat"], 2)] == [2, 2]
        service.close()

    def test_a_folder_that_is_no_model(self, tmp_path):
        config = IndexConfig(method={"type": "dense", "model": tmp_path})
        with pytest.raises(ConfigError, match="is not the folder of a model"):
            IndexSpec(config=config).check()
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(ModelError, match="cannot be loaded as a text encoder"):
            open_index(config)
