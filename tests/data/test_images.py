"""Pictures of datasets: from wherever they come they are checked once, and the prepared rows hold them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from agentfly_lib.chat.images import load_picture
from agentfly_lib.configs.data import FilesDataConfig, HubDataConfig
from agentfly_lib.data.prepare import load_problems, prepare_dataset
from agentfly_lib.errors import DataError
from tests.chat.vision_models import png


def url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


RED, BLUE = png(8, 8), png(8, 8, "blue")


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "data" / "pictures").mkdir(parents=True)
    (tmp_path / "data" / "pictures" / "red.png").write_bytes(RED)
    return tmp_path / "data"


def lines(folder: Path, *rows: dict, name: str = "rows.jsonl") -> Path:
    padding = [{"question": f"filler {number}?", "image": None} for number in range(10)]
    (folder / name).write_text("\n".join(json.dumps(row) for row in [*rows, *padding]))
    return folder / name


def prepared(path: Path, cache: Path, **options):
    ref = prepare_dataset(FilesDataConfig(train=path, **options), cache)
    problems = [*load_problems(ref, "train"), *load_problems(ref, "eval")]
    return ref, {problem.messages[-1]["content"]: problem for problem in problems}


class TestSources:
    def test_a_path_beside_the_data_and_a_data_url(self, folder, tmp_path):
        path = lines(
            folder,
            {"question": "one?", "image": "pictures/red.png"},
            {"question": "two?", "images": ["pictures/red.png", url(BLUE)]},
        )
        _, problems = prepared(path, tmp_path / "cache")
        assert problems["one?"].columns["image"] == url(RED)
        assert problems["two?"].columns["images"] == [url(RED), url(BLUE)]

    @pytest.mark.parametrize("kind", ["struct", "bytes", "list"])
    def test_bytes_of_a_parquet_file(self, folder, tmp_path, kind):
        struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        whole = {"bytes": RED, "path": None}
        column, values = {
            "struct": ("image", pa.array([whole] * 12, struct)),
            "bytes": ("image", pa.array([RED] * 12, pa.binary())),
            "list": ("images", pa.array([[whole, {"bytes": None, "path": "pictures/red.png"}]] * 12, pa.list_(struct))),
        }[kind]
        table = pa.table({"question": [f"{number}?" for number in range(12)], column: values})
        pyarrow.parquet.write_table(table, folder / "rows.parquet")
        _, problems = prepared(folder / "rows.parquet", tmp_path / "cache")
        assert problems["3?"].columns[column] == ([url(RED)] * 2 if kind == "list" else url(RED))

    def test_the_image_feature_of_datasets(self, tmp_path):
        datasets = pytest.importorskip("datasets")
        rows = {"question": [f"{n}?" for n in range(12)], "image": [{"bytes": RED, "path": None}] * 12}
        features = datasets.Features({"question": datasets.Value("string"), "image": datasets.Image()})
        (tmp_path / "hub").mkdir()
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "hub" / "train.parquet")
        ref = prepare_dataset(HubDataConfig(path=str(tmp_path / "hub")), tmp_path / "cache")
        assert load_problems(ref, "train")[0].columns["image"] == url(RED)

    def test_parts_of_messages(self, folder, tmp_path):
        parts = [{"type": "image", "image": "pictures/red.png"}, {"type": "text", "text": "?"}]
        frames = [{"type": "video", "video": [url(RED), url(BLUE)]}]
        path = lines(
            folder,
            *(
                {"messages": [{"role": "user", "content": each}], "id": str(n)}
                for n, each in enumerate((parts, frames))
            ),
        )
        ref = prepare_dataset(FilesDataConfig(train=path), tmp_path / "cache")
        found = {each.id: each for split in ("train", "eval") for each in load_problems(ref, split)}
        assert found["0"].messages[0]["content"] == [{"type": "image", "image": url(RED)}, parts[1]]
        assert [part["image"] for part in found["1"].messages[0]["content"]] == [url(RED), url(BLUE)]

    def test_another_folder_that_the_config_names(self, folder, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "blue.png").write_bytes(BLUE)
        path = lines(folder, {"question": "one?", "image": "blue.png"})
        images = {"folders": [str(tmp_path / "elsewhere")]}
        _, problems = prepared(path, tmp_path / "cache", images=images)
        assert problems["one?"].columns["image"] == url(BLUE)

    def test_what_is_no_picture_at_all_stays(self, folder, tmp_path):
        path = lines(folder, {"question": "one?", "image": "swebench/sweb.eval.x86_64.astropy:latest"})
        _, problems = prepared(path, tmp_path / "cache")
        assert problems["one?"].columns["image"].startswith("swebench/")


class TestRefusals:
    @pytest.mark.parametrize(
        ("image", "fault"),
        [
            ("pictures/none.png", "there is no image"),
            ("../secret.png", "there is no image"),
            ("/etc/passwd.png", "there is no image"),
            ("http://127.0.0.1/a.png", "would have to be fetched"),
            ("pictures/broken.png", "damaged"),
            ("pictures/drawing.svg", "SVG drawing"),
            (url(png(20_000, 1)), "its long side may be"),
            ({"path": "pictures/none.png"}, "there is no image"),
            ([url(RED), "pictures/none.png"], r"\[1\]'"),
            (7, "a int is not an image"),
        ],
    )
    def test_a_bad_picture_is_a_bad_row(self, folder, tmp_path, image, fault):
        (tmp_path / "secret.png").write_bytes(RED)
        (folder / "pictures" / "broken.png").write_bytes(load_picture(Image.linear_gradient("L")).data[:200])
        (folder / "pictures" / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        path = lines(folder, {"question": "one?", "image": image})
        with pytest.raises(DataError, match=rf"rows.jsonl line 1: column 'image.*{fault}"):
            prepared(path, tmp_path / "cache")
        assert not list((tmp_path / "cache").glob("*/train.arrow"))

    def test_a_host_that_is_named_must_be_public(self, folder, tmp_path):
        path = lines(folder, {"question": "one?", "image": "http://127.0.0.1:9/a.png"})
        with pytest.raises(DataError, match="is no public address"):
            prepared(path, tmp_path / "cache", images={"hosts": ["127.0.0.1"]})


class TestFingerprint:
    def test_a_picture_that_changes_makes_another_dataset(self, folder, tmp_path):
        path = lines(folder, {"question": "one?", "image": "pictures/red.png"})
        first, _ = prepared(path, tmp_path / "cache")
        assert prepared(path, tmp_path / "cache")[0] == first
        (folder / "pictures" / "red.png").write_bytes(BLUE)
        second, problems = prepared(path, tmp_path / "cache")
        assert second.fingerprint != first.fingerprint
        assert problems["one?"].columns["image"] == url(BLUE)

    def test_the_same_rows_and_pictures_elsewhere_are_the_same(self, folder, tmp_path):
        path = lines(folder, {"question": "one?", "image": "pictures/red.png"})
        first, _ = prepared(path, tmp_path / "cache")
        folder.rename(tmp_path / "moved")
        assert prepared(tmp_path / "moved" / "rows.jsonl", tmp_path / "cache")[0].fingerprint == first.fingerprint

    def test_rows_hold_what_their_pictures_were(self, folder, tmp_path):
        path = lines(folder, {"question": "one?", "image": "pictures/red.png"})
        _, problems = prepared(path, tmp_path / "cache")
        assert load_picture(problems["one?"].columns["image"]).data == RED
