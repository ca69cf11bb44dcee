"""The shop: files, prices, goals, pages, reward; buyers who know, and buyers who guess.

Values of the published catalogue are facts about the original engine; they need its files, which are not ours to ship.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from statistics import mean

import pytest

from agentfly_lib.envs import get_environment
from agentfly_lib.envs.search.bm25 import PACKAGES
from agentfly_lib.envs.webshop import KIND, WebShop, WebShopSettings
from agentfly_lib.envs.webshop.catalogue import Product, read_catalogue
from agentfly_lib.envs.webshop.goals import NO_LIMIT, Goal, split_goals
from agentfly_lib.envs.webshop.nouns import noun_finder, words_of_title
from agentfly_lib.envs.webshop.pages import write_rich
from agentfly_lib.envs.webshop.reward import color_of, score_purchase, title_score, type_factor
from agentfly_lib.envs.webshop.settings import CatalogueFiles, check
from agentfly_lib.envs.webshop.shop import open_shop
from agentfly_lib.errors import ConfigError, DataError

DATA = Path(os.environ.get("AGENTFLY_TEST_DATA", Path(__file__).parents[3] / "shared/data")) / "webshop"
PUBLISHED = {
    "type": "files",
    "products": DATA / "items_shuffle_1000.json.gz",
    "attributes": DATA / "items_ins_v2_1000.json",
    "human_goals": DATA / "items_human_ins.partial13.json",
}
for package in (*PACKAGES, "rapidfuzz"):
    pytest.importorskip(package)
published = pytest.mark.skipif(not PUBLISHED["products"].is_file(), reason=f"the published catalogue is not in {DATA}")
WORDS = noun_finder(None)


def product(**changes) -> Product:
    values = {
        "asin": "B0TEST",
        "title": "Acme Running Shoe",
        "description": "Made of canvas.",
        "bullets": ("Rubber sole",),
        "price": 35.0,
        "price_tag": "$35.0",
        "rating": "N.A.",
        "reviews": (),
        "options": {},
        "attributes": ("slip resistant",),
        "query": "shoes",
        "category": ("Clothing", "Men", "Shoes"),
        "worded": None,
        "human": (),
    }
    return Product(**values | changes)


def goal(wanted: Product, **changes) -> Goal:
    values = {"instruction": "", "attributes": ("slip resistant",), "options": (), "price_limit": 40.0}
    return Goal(product=wanted, **values | changes)


def write(folder: Path, *, rows=None, attributes=None, human=None, reviews=None) -> dict:
    row = {
        "asin": "B000000001",
        "name": "Acme Hat",
        "full_description": "A hat.",
        "pricing": "$10.5",
        "small_description": ["Warm"],
        "images": [],
        "product_category": "Clothing › Hats",
        "customization_options": {"Color": [{"value": " Red/Blue "}], "size": None},
        "category": "fashion",
        "query": " Hats ",
    }
    made = [row | changes for changes in (rows or [{}])]
    (folder / "p.json").write_text(json.dumps(made))
    (folder / "a.json").write_text(json.dumps(attributes or {}))
    (folder / "h.json").write_text(json.dumps(human or {}))
    (folder / "r.json").write_text(json.dumps(reviews or []))
    names = {"products": "p", "attributes": "a", "human_goals": "h", "reviews": "r"}
    return {name: folder / f"{file}.json" for name, file in names.items()}


def read(folder: Path, **contents) -> list[Product]:
    return read_catalogue(CatalogueFiles(**write(folder, **contents)), 233)


def oracle(shop: WebShop, wanted: Goal) -> float:
    """Searches the instruction without its price, looks for the product among the hits, chooses all options, buys."""
    shop.step(f"search[{wanted.instruction.split(', and price lower')[0]}]")
    while (found := shop.step(f"click[{wanted.product.asin}]")).error:
        if "B0" not in shop.step("click[next >]").observation:
            return 0.0
    for option in wanted.options:
        found = shop.step(f"click[{option[1]}]")
        assert found.error is None
    found = shop.step("click[buy now]")
    assert found.done
    return found.reward


def shown(shop: WebShop) -> str:
    """The page, which no refused action changes."""
    assert shop._goal is not None
    return shop._show(shop._goal)


def guess(shop: WebShop, rng: random.Random, word: str) -> float:
    """Searches a word and clicks at random, at most 15 times."""
    shop.step(f"search[{word}]")
    for _ in range(15):
        elements = shop.step("list[]").observation.removeprefix("You can click: ").split(", ")
        found = shop.step(f"click[{rng.choice(elements)}]")
        if found.done:
            return found.reward
    return 0.0


class TestCatalogue:
    def test_a_product_as_the_original_reads_it(self, tmp_path):
        (found,) = read(tmp_path, attributes={"B000000001": {"attributes": ["warm"]}})
        assert (found.title, found.query, found.category) == ("Acme Hat", "hats", ("Clothing", "Hats"))
        assert found.options == {"color": ("red | blue",)}
        assert (found.price, found.price_tag, found.rating) == (10.5, "$10.5", "N.A.")
        assert found.attributes == ("warm",)
        assert found.indexed_text == "acme hat a hat. warm color: red | blue"

    @pytest.mark.parametrize(
        ("pricing", "tag", "least", "most"),
        [("", "$100.0", 100, 100), ("$1,234.5", "$1234.5", 1234.5, 1234.5), ("$5.00$8.5", "$5.0 to $8.5", 5, 8.5)],
    )
    def test_prices(self, tmp_path, pricing, tag, least, most):
        (found,) = read(tmp_path, rows=[{"pricing": pricing}])
        assert found.price_tag == tag
        assert least <= found.price <= most

    def test_a_drawn_price_is_the_same_however_many_products_there_are(self, tmp_path):
        rows = [{"asin": f"B{n}", "pricing": "$5$80"} for n in range(5)]
        (alone,) = read(tmp_path, rows=rows[3:4])
        assert [found.price for found in read(tmp_path, rows=rows)][3] == alone.price
        assert len({found.price for found in read(tmp_path, rows=rows)}) == 5

    def test_what_the_original_leaves_out(self, tmp_path):
        rows = [{"asin": asin} for asin in ("B1", "B1", "nan", "B1234567890")]
        assert [found.asin for found in read(tmp_path, rows=rows)] == ["B1"]

    @pytest.mark.parametrize(
        ("contents", "message"),
        [
            (
                {"rows": [{}, {"asin": "B2", "name": None, "query": 7}]},
                r"p\.json: product 1 is not in WebShop's format",
            ),
            ({"attributes": [1]}, r"a\.json holds a list; WebShop's file is a dict"),
            ({"reviews": [{"asin": "B1"}, {"score": 1}]}, r"r\.json: review 1 is not in WebShop's format"),
            ({"reviews": [7]}, r"r\.json: review 0 is not in WebShop's format"),
        ],
    )
    def test_files_that_cannot_be_used(self, tmp_path, contents, message):
        with pytest.raises(DataError, match=message):
            read(tmp_path, **contents)

    def test_no_json(self, tmp_path):
        paths = write(tmp_path)
        paths["products"].write_text("[")
        with pytest.raises(DataError, match=r"p\.json is not JSON"):
            read_catalogue(CatalogueFiles(**paths), 0)

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            (gzip.compress(b"[" + b" " * (20 << 20) + b"]"), "unpacks to more than 100 times its size"),
            (gzip.compress(b"[]")[:-12], r"is not JSON under gzip"),
            (gzip.compress(b"[]")[:10] + b"\xff" * 20, r"is not JSON under gzip"),
            (b"[]", "cannot read .*p.json.gz: Not a gzipped file"),
            (gzip.compress(b"[" * 100_000), "is not JSON under gzip: maximum recursion"),
        ],
    )
    def test_no_gzip_of_it(self, tmp_path, written, message):
        paths = write(tmp_path)
        paths["products"] = tmp_path / "p.json.gz"
        paths["products"].write_bytes(written)
        with pytest.raises(DataError, match=message):
            read_catalogue(CatalogueFiles(**paths), 0)

    def test_files_that_are_not_there_are_named_before_anything_starts(self, tmp_path):
        settings = WebShopSettings(
            catalogue={"type": "files", "products": tmp_path / "p", "attributes": tmp_path / "a"}
        )
        with pytest.raises(ConfigError, match=r"there is no .*/p, no .*/a .looked from"):
            check(settings)

    def test_human_goals_need_a_file(self):
        with pytest.raises(ValueError, match=r"needs catalogue\.human_goals"):
            WebShopSettings(goals="human")

    def test_the_generated_one(self):
        few, many = (open_shop(WebShopSettings(catalogue={"type": "generated", "products": n})) for n in (20, 40))
        assert few.products == many.products[:20]
        assert len(few.by_asin) == 20
        other = open_shop(WebShopSettings(catalogue={"type": "generated", "products": 20, "seed": 1}))
        assert other.products != few.products


class TestGoals:
    def test_one_for_each_combination_of_options(self, tmp_path):
        options = {"size": [{"value": "S"}, {"value": "M"}], "Color": [{"value": "Red"}]}
        about = {"attributes": ["warm"], "instruction": "Find me a hat", "instruction_attributes": ["warm"]}
        paths = write(tmp_path, rows=[{"customization_options": options}], attributes={"B000000001": about})
        goals = open_shop(WebShopSettings(catalogue={"type": "files", **paths})).goals
        limit = f"{goals[0].price_limit:.2f}"
        assert {found.instruction for found in goals} == {
            f"Find me a hat with color: red, and size: {size}, and price lower than {limit} dollars" for size in "sm"
        }
        assert goals[0].price_limit in (30.0, 40.0, 50.0)  # the larger of two of 20, 30, 40, 50

    def test_human_ones(self, tmp_path):
        wish = {"instruction": "a warm hat.", "instruction_attributes": ["warm"], "instruction_options": ["red"]}
        human = {"B000000001": [wish, wish | {"instruction_attributes": []}]}
        paths = write(tmp_path, rows=[{"pricing": "$985"}], human=human)
        (found,) = open_shop(WebShopSettings(catalogue={"type": "files", **paths}, goals="human")).goals
        assert (found.instruction, found.options) == ("a warm hat", ("red",))
        assert found.price_limit == NO_LIMIT  # only one multiple of ten is left below the top

    def test_a_catalogue_without_goals(self, tmp_path):
        with pytest.raises(DataError, match="has no goals of the kind 'attributes'"):
            open_shop(WebShopSettings(catalogue={"type": "files", **write(tmp_path)}))

    @pytest.mark.parametrize(
        ("count", "test", "dev"), [(12087, 500, 1000), (3000, 500, 1000), (2999, 499, 999), (13, 2, 4), (1, 0, 0)]
    )
    def test_splits(self, count, test, dev):
        splits = split_goals(count)
        assert [len(splits[name]) for name in ("test", "dev", "train")] == [test, dev, count - test - dev]
        assert [n for name in ("test", "dev", "train") for n in splits[name]] == list(range(count))

    def test_problems_are_the_goals_of_their_split(self):
        settings = WebShopSettings()
        rows = {split: list(KIND.problems(settings, split)) for split in ("train", "eval")}
        splits = open_shop(settings).splits
        assert [row["goal"] for row in rows["train"]] == list(splits["train"])
        assert [row["goal"] for row in rows["eval"]] == list(splits["dev"])
        assert json.loads(json.dumps(rows["train"][0])) == rows["train"][0]

    def test_a_problem_of_another_catalogue_is_refused(self):
        shop = WebShop()
        (row, *_) = KIND.problems(WebShopSettings(catalogue={"type": "generated", "seed": 7}), "train")
        with pytest.raises(DataError, match="prepare the dataset again"):
            shop.reset(row)
        with pytest.raises(DataError, match="prepare the dataset again"):
            shop.reset({"goal": 10**9})


class TestReward:
    def test_all_as_wanted(self):
        wanted = product(options={"color": ("black", "white")})
        score = score_purchase(wanted, {"color": "black"}, goal(wanted, options=(("color", "black"),)), WORDS)
        assert (score.reward, score.attributes, score.options, score.price) == (1.0, 1, 1, True)

    @pytest.mark.parametrize(
        ("changes", "chosen", "reward"),
        [
            ({}, {}, 2 / 3),  # no option
            ({"price": 41.0}, {"color": "black"}, 2 / 3),
            ({"attributes": ()}, {"color": "black"}, 2 / 3),
            ({"attributes": (), "bullets": ("It is Slip Resistant",)}, {"color": "black"}, 1.0),
            ({"attributes": ("resistant slip",)}, {"color": "black"}, 1.0),
            ({"title": "Zeta Teapot"}, {"color": "black"}, 0.0),
        ],
    )
    def test_what_is_missing_costs_its_share(self, changes, chosen, reward):
        wanted = goal(product(), options=("black",))
        assert score_purchase(product(**changes), chosen, wanted, WORDS).reward == pytest.approx(reward)

    @pytest.mark.parametrize(
        ("changes", "factor"),
        [
            ({}, 1.0),
            ({"query": "x", "category": ("y",)}, 1.0),  # the titles are alike
            ({"title": "Shoe"}, 1.0),  # a third of the nouns
            ({"title": "Shoe " + "x" * 5, "query": "x", "category": ("Men", "Shoes", "z")}, 1.0),
        ],
    )
    def test_products_of_the_type(self, changes, factor):
        assert type_factor(product(**changes), product(), WORDS) == factor

    def test_products_of_another_type(self):
        wanted = product(title=" ".join(f"word{letter}" for letter in "abcdefghijklmnopqrst"))  # 20 nouns
        others = {share: " ".join(wanted.title.split()[:share]) for share in (0, 1, 3)}
        factors = [
            type_factor(product(title=title, query="x", category=()), wanted, WORDS) for title in others.values()
        ]
        assert factors == [0.0, 0.1, 0.5]
        assert type_factor(product(title=others[3]), wanted, WORDS) == 1.0  # found by the same query

    def test_titles(self):
        assert title_score("Red Felt Hat", "Blue Felt Hat for a Man", WORDS) == 0.5
        assert title_score("Hat", "Hat Hat Box", WORDS) == pytest.approx(1 / 3)  # repetitions count on one side
        assert title_score("Red Hat", "The 12 of 3", WORDS) == 0.2  # no noun is wanted

    def test_words_that_stand_for_nouns(self):
        assert words_of_title("Acme's 12-Pack of the Best USB-C Cables (6.6 ft), Black & 4K") == (
            "acme", "pack", "best", "usb", "c", "cables", "ft", "black", "4k",
        )  # fmt: skip

    def test_colors(self):
        assert color_of("dark navy stripes") == "dark"
        assert color_of("wood") == "wood"
        assert color_of(("color", "navy")) == "navy"
        assert color_of(("color", "dark navy")) == "color dark navy"


class TestPages:
    def shop(self, tmp_path, **settings) -> WebShop:
        rows = [{"asin": f"B{n:09}", "name": f"Acme Hat {n}"} for n in range(12)]
        rows[0]["customization_options"] = {"color": [{"value": "Red"}, {"value": "Blue"}]}
        about = {"attributes": ["warm"], "instruction": "Find me a hat", "instruction_attributes": ["warm"]}
        paths = write(tmp_path, rows=rows, attributes={"B000000000": about})
        shop = WebShop(catalogue={"type": "files", **paths}, **settings)
        shop.reset({"goal": 0 if shop._shop.goals[0].options[0][1] == "red" else 1})
        self.wish = shop._shop.goals[0 if shop._shop.goals[0].options[0][1] == "red" else 1].instruction
        return shop

    def test_a_visit_in_text(self, tmp_path):
        shop = self.shop(tmp_path)
        head = f"Instruction: [SEP] {self.wish} [SEP] "
        assert shown(shop) == f"WebShop [SEP] {head}Search"
        results = shop.step("search[HAT]").observation
        assert results.startswith(
            f"{head}Back to Search [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] B000000000 [SEP] Acme Hat 0 "
            "[SEP] $10.5 [SEP] B000000001 [SEP] "
        )
        assert results.count("Acme Hat") == 10
        second = shop.step("click[Next >]").observation
        assert second.startswith(f"{head}Back to Search [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > ")
        assert second.count("Acme Hat") == 2
        assert shop.step("click[< Prev]").observation == results
        item = (
            f"{head}Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] blue [SEP] Acme Hat 0 [SEP] Price: $10.5 "
            "[SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
        )
        assert shop.step("click[b000000000]").observation == item
        assert shop.step("click[red]").observation == item
        tail = f"{head}Back to Search [SEP] < Prev [SEP] "
        assert shop.step("click[Description]").observation == f"{tail}A hat."
        assert shop.step("click[< prev]").observation == item
        assert shop.step("click[features]").observation == f"{tail}Warm"
        assert shop.step("click[< prev]").observation == item
        bought = shop.step("click[Buy Now]")
        assert (bought.observation, bought.reward, bought.done) == ("Thank you for shopping with us!", 1.0, True)
        assert bought.info["options"] == {"color": "red"}
        assert shop.step("click[Buy Now]").error == "The visit is over."

    def test_a_page_in_rich_text(self, tmp_path):
        shop = self.shop(tmp_path, observation="rich")
        shop.step("search[hat]")
        shop.step("click[b000000000]")
        assert shop.step("click[blue]").observation == (
            f"You have clicked blue.\nInstruction:\n{self.wish}\n[button] Back to Search [button_]\n"
            "[button] < Prev [button_]\ncolor\n  [button] red [button_]\n  [clicked button] blue [clicked button_]\n"
            "Acme Hat 0\nPrice: $10.5\nRating: N.A.\n[button] Description [button_]\n[button] Features [button_]\n"
            "[button] Reviews [button_]\n[button] Buy Now [button_]\n"
        )
        assert (
            "\n\n[clicked button] B000000000 [clicked button_]\nAcme Hat 0\n" in shop.step("click[< prev]").observation
        )
        assert write_rich([]) == ""

    def test_results_forget_the_options_and_the_search_page_forgets_all(self, tmp_path):
        shop = self.shop(tmp_path)
        for action in ("search[hat]", "click[b000000000]", "click[red]", "click[< prev]", "click[b000000000]"):
            shop.step(action)
        assert shop.step("click[buy now]").info["options"] == {}
        shop = self.shop(tmp_path)
        shop.step("search[hat]")
        assert shop.step("click[back to search]").observation.endswith("[SEP] Search")
        assert shop.step("click[next >]").error is not None

    def test_what_can_be_clicked_is_told_when_asked_or_always(self, tmp_path):
        shop = self.shop(tmp_path)
        assert shop.step("list[]").observation == "Nothing can be clicked here; search for something."
        shop.step("search[hat]")
        assert shop.step("list[]").observation.startswith("You can click: back to search, next >, b000000000, ")
        shop = self.shop(tmp_path, clickables="observation")
        assert "\nYou can click: back to search, next >, b000000000, " in shop.step("search[hat]").observation

    @pytest.mark.parametrize(
        "action",
        [
            "", " ", "\n", "buy", "click", "click[", "click[]", "click[nothing]", "click[search]", "search[]",
            "search[ ]", "click[buy now]", "Search[hat]", "search[" + "x" * 2_000_000 + "]", "\x00\x1b[31m",
            "click[\ud800]", "ａ［ｂ］", "click[" + "[" * 500, "list[x", "search[a]click[b]" * 100,
        ],
    )  # fmt: skip
    def test_what_cannot_be_done_changes_nothing(self, tmp_path, action):
        shop = self.shop(tmp_path)
        before = shown(shop)
        found = shop.step(action)
        assert found.error == found.observation
        assert found.error
        assert len(found.error) < 500
        assert (found.reward, found.done) == (0.0, False)
        assert shown(shop) == before

    @pytest.mark.parametrize("keywords", ["🦊🦊", "]][[", "the of", "\x00", "\udcff hat", "zzzz"])
    def test_odd_searches_find_what_there_is(self, tmp_path, keywords):
        found = self.shop(tmp_path).step(f"search[{keywords}]")
        assert found.error is None
        assert "Total results: " in found.observation

    def test_a_reset_begins_the_same_visit_whatever_came_before(self, tmp_path):
        shop = self.shop(tmp_path)
        first = shop.reset({"goal": 1})
        for action in ("search[hat]", "click[b000000000]", "click[buy now]"):
            shop.step(action)
        assert shop.reset({"goal": 1}) == first
        assert shop.step("search[hat]").error is None
        shop.close()
        shop.close()

    def test_the_shop_is_made_once(self):
        assert WebShop()._shop is WebShop(observation="rich")._shop


class TestBuyers:
    def test_on_the_generated_catalogue(self):
        shop, rng = WebShop(), random.Random(0)
        goals = shop._shop.goals
        earned = []
        for number in range(0, len(goals), 5):
            shop.reset({"goal": number})
            earned.append(oracle(shop, goals[number]))
        assert mean(earned) > 0.999
        guessed = []
        for number in range(300):
            shop.reset({"goal": number})
            guessed.append(guess(shop, rng, rng.choice(shop._shop.products).query))
        assert mean(guessed) < 0.1

    @published
    def test_who_knows_what_to_buy_on_the_published_one(self):
        """0.985: the original's reward of options (see `color_of`) costs 0.010, products that are not found 0.005."""
        shop = WebShop(catalogue=PUBLISHED)
        goals = shop._shop.goals
        assert len(goals) == 6910
        earned = []
        for number, wanted in enumerate(goals):
            shop.reset({"goal": number, "asin": wanted.product.asin})
            earned.append(oracle(shop, wanted))
        assert mean(earned) == pytest.approx(0.985, abs=0.0006)

    @published
    def test_who_guesses_on_the_published_one(self):
        shop, rng = WebShop(catalogue=PUBLISHED), random.Random(0)
        goals, products = shop._shop.goals, shop._shop.products
        earned = []
        for _ in range(1500):
            shop.reset({"goal": rng.randrange(len(goals))})
            earned.append(guess(shop, rng, rng.choice(products).query))
        assert 0.002 < mean(earned) < 0.02

    @published
    def test_human_goals_of_the_published_one(self):
        shop = open_shop(WebShopSettings(catalogue=PUBLISHED, goals="human"))
        assert len(shop.goals) == 13
        assert all(found.price_limit > found.product.price for found in shop.goals)

    @published
    def test_the_published_one_is_the_same_every_time(self):
        first = open_shop(WebShopSettings(catalogue=PUBLISHED))
        again = read_catalogue(CatalogueFiles(**{k: v for k, v in PUBLISHED.items() if k != "type"}), 233)
        assert again == first.products
        other = read_catalogue(CatalogueFiles(**{k: v for k, v in PUBLISHED.items() if k != "type"}), 234)
        assert [p.price for p in other] != [p.price for p in again]


def test_it_is_registered_and_light():
    assert get_environment("webshop") is KIND
    assert [action.__name__ for action in KIND.actions(WebShopSettings())] == ["search", "click", "list_elements"]
    assert [action.__name__ for action in KIND.actions(WebShopSettings(clickables="observation"))] == [
        "search",
        "click",
    ]


def test_packages_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="webshop needs bm25s, PyStemmer, rapidfuzz: pip install"):
        check(WebShopSettings())


def test_nouns_by_a_tagger():
    pytest.importorskip("spacy")
    pytest.importorskip("en_core_web_sm")
    assert "shoe" in noun_finder("en_core_web_sm")("Acme Running Shoe")
