"""Pictures of every kind and fault: kept, made plain, or refused with words that say what to do."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from agentfly_lib.chat.images import MAX_BYTES, NO_ACCESS, ImageAccess, load_picture
from agentfly_lib.errors import ImageError

NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (20, 30, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header promises so many pixels, and whose data is next to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class TestWhatIsKept:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
    def test_a_plain_picture_stays_byte_for_byte(self, kind):
        data = encoded(NOISE, kind)
        picture = load_picture(data)
        assert picture.data == data
        assert (picture.width, picture.height) == (30, 20)
        assert picture.digest == hashlib.sha256(data).hexdigest()

    def test_the_content_decides_not_the_name(self, tmp_path):
        (tmp_path / "really.gif").write_bytes(encoded(NOISE, "JPEG"))
        assert load_picture(tmp_path / "really.gif").data == encoded(NOISE, "JPEG")
        url = "data:image/gif;base64," + base64.b64encode(encoded(NOISE)).decode()
        assert load_picture(url).data == encoded(NOISE)

    @pytest.mark.parametrize("source", ["bytes", "pil", "array", "hf"])
    def test_every_source_gives_the_same_pixels(self, source):
        data = encoded(NOISE)
        given_as = {
            "bytes": bytearray(data),
            "pil": NOISE,
            "array": np.asarray(NOISE),
            "hf": {"bytes": data, "path": "a.png"},
        }
        assert np.array_equal(pixels(load_picture(given_as[source]).data), np.asarray(NOISE))

    def test_base64_without_a_url_around_it(self):
        text = base64.b64encode(encoded(NOISE.resize((90, 60)), "BMP")).decode()
        assert load_picture(text).width == 90


class TestWhatIsMadePlain:
    @pytest.mark.parametrize(
        ("image", "kind"),
        [
            (NOISE.convert("CMYK"), "JPEG"),
            (NOISE.convert("L"), "PNG"),
            (NOISE.convert("P"), "PNG"),
            (NOISE.convert("P"), "GIF"),
            (NOISE.convert("1"), "PNG"),
            (NOISE, "BMP"),
        ],
    )
    def test_other_modes_and_kinds_become_rgb(self, image, kind):
        data = encoded(image, kind)
        picture = load_picture(data)
        with Image.open(io.BytesIO(picture.data)) as opened:
            assert (opened.format, opened.mode, opened.size) == ("PNG", "RGB", (30, 20))
        assert np.array_equal(pixels(picture.data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))

    def test_transparency_is_laid_on_white(self):
        image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
        image.paste((255, 0, 0, 255), (0, 0, 4, 8))
        found = pixels(load_picture(encoded(image)).data)
        assert found[0, 0].tolist() == [255, 0, 0]
        assert found[0, 7].tolist() == [255, 255, 255]

    def test_sixteen_bits_keep_their_scale(self):
        image = Image.fromarray(np.full((8, 8), 40_000, np.uint16))
        assert pixels(load_picture(encoded(image)).data)[0, 0].tolist() == [156, 156, 156]

    def test_a_cameras_turned_picture_is_put_upright(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by 90 degrees
        picture = load_picture(encoded(NOISE, "JPEG", exif=exif, quality=95))
        assert (picture.width, picture.height) == (20, 30)

    @pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
    def test_of_an_animation_the_first_frame(self, kind):
        red, blue = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
        options = {"lossless": True} if kind == "WEBP" else {}
        picture = load_picture(encoded(red, kind, save_all=True, append_images=[blue], **options))
        assert pixels(picture.data)[0, 0].tolist() == [255, 0, 0]
        assert not getattr(Image.open(io.BytesIO(picture.data)), "is_animated", False)

    def test_one_pixel_is_enlarged(self):
        picture = load_picture(encoded(Image.new("RGB", (1, 1), (1, 2, 3))))
        assert (picture.width, picture.height) == (4, 4)
        assert (pixels(picture.data) == [1, 2, 3]).all()


class TestWhatIsRefused:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
    def test_a_truncated_file(self, kind):
        data = encoded(NOISE, kind)
        with pytest.raises(ImageError, match=r"damaged|no image"):
            load_picture(data[: len(data) * 2 // 3])

    def test_too_narrow(self):
        with pytest.raises(ImageError, match=r"20000 x 1 pixels; its long side may be at most 200 times"):
            load_picture(encoded(Image.new("RGB", (20_000, 1))))

    @pytest.mark.parametrize("side", [9_000, 20_000, 60_000])
    def test_a_decompression_bomb_before_a_pixel_of_it_is_made(self, side):
        with pytest.raises(ImageError, match="the limit is 67108864"):
            load_picture(png_of_size(side, side))

    @pytest.mark.parametrize(
        "text", ["<svg xmlns='http://www.w3.org/2000/svg'/>", "<?xml version='1.0'?>\n<!-- a --><svg width='1'></svg>"]
    )
    def test_a_drawing(self, text):
        with pytest.raises(ImageError, match="SVG drawing; save it as PNG"):
            load_picture(text.encode())

    @pytest.mark.parametrize("data", [b"hello", b"%PDF-1.7", encoded(NOISE, "TIFF"), encoded(NOISE, "PPM")])
    def test_what_is_no_image_or_of_a_kind_that_is_not_read(self, data):
        with pytest.raises(ImageError, match=f"^{len(data)} bytes that are no image"):
            load_picture(data)

    def test_a_file_of_comments_is_looked_at_once(self):
        with pytest.raises(ImageError, match="no image"):
            load_picture(b"<!---->" * 600)

    def test_nothing_and_too_much(self):
        with pytest.raises(ImageError, match="empty"):
            load_picture(b"")
        with pytest.raises(ImageError, match="larger than 20 MiB"):
            load_picture(bytes(MAX_BYTES + 1))

    def test_things_that_hold_no_pixels(self):
        with pytest.raises(ImageError, match="a object is not an image"):
            load_picture(object())
        with pytest.raises(ImageError, match="an array of shape"):
            load_picture(np.zeros((2, 2, 7), np.uint8))

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_damaged_bytes_are_a_picture_or_an_image_error(self, data):
        kind = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]))
        whole = bytearray(encoded(NOISE, kind))
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(ImageError):
            load_picture(bytes(whole))


class TestTextThatNamesOne:
    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.png").write_bytes(encoded(NOISE))
        (tmp_path / "secret.png").write_bytes(encoded(NOISE))
        (tmp_path / "in" / "link.png").symlink_to(tmp_path / "secret.png")
        return tmp_path / "in"

    def test_files_below_an_allowed_folder(self, folder):
        access = ImageAccess(folders=(folder,))
        for text in ("a.png", str(folder / "a.png"), f"file://{folder}/a.png"):
            assert load_picture(text, access=access).data == encoded(NOISE)

    @pytest.mark.parametrize(
        "text", ["../secret.png", "link.png", "/etc/passwd", "nowhere.png", "a.png/../../secret.png"]
    )
    def test_no_other_file(self, folder, text):
        with pytest.raises(ImageError, match="there is no image"):
            load_picture(text, access=ImageAccess(folders=(folder,)))

    @pytest.mark.parametrize("text", ["http://[x", "file://[x", "n" * 300 + ".png", "\ud83d.png", "x" * 4000])
    def test_texts_that_are_nothing(self, folder, text):
        with pytest.raises(ImageError):
            load_picture(text, access=ImageAccess(folders=(folder,)))

    def test_no_file_at_all_where_no_folder_is_allowed(self, folder):
        with pytest.raises(ImageError, match="no folder is allowed"):
            load_picture(str(folder / "a.png"))

    def test_what_is_no_file_is_not_waited_for(self, folder):
        os.mkfifo(folder / "pipe")
        with pytest.raises(ImageError, match="is not a file"):
            load_picture("pipe", access=ImageAccess(folders=(folder,)))

    @pytest.mark.parametrize("url", ["http://127.0.0.1/a.png", "https://example.org/a.png"])
    def test_an_address_where_nothing_is_fetched(self, url):
        with pytest.raises(ImageError, match="would have to be fetched"):
            load_picture(url, access=NO_ACCESS)

    def test_an_address_is_fetched_by_whoever_was_given_for_it(self):
        access = ImageAccess(fetch=lambda url: encoded(NOISE) if url == "https://a.example/x" else b"")
        assert load_picture("https://a.example/x", access=access).width == 30

    @pytest.mark.parametrize("url", ["ftp://a/b.png", "gopher://a"])
    def test_other_addresses(self, url):
        with pytest.raises(ImageError, match="which is not read"):
            load_picture(url)

    @pytest.mark.parametrize("text", ["data:image/png;base64,@@@@", "data:image/png;base64,", "data:,hello"])
    def test_data_urls_of_nothing(self, text):
        with pytest.raises(ImageError):
            load_picture(text)
