"""Pictures from wherever they come, checked once and kept as the bytes of one image file.

    picture = load_picture("photos/cat.jpg", access=ImageAccess(folders=(data_folder,)))

What decides is the content, never a name or a MIME type. A still picture in RGB stays byte for byte as it is; any other
(a palette, CMYK, 16 bits, transparency, which is laid on white, a camera's turned picture, the first frame of an
animation, one of fewer than four pixels on a side, which is enlarged) becomes a PNG. Sizes are read from the header and
bounded before a pixel is decoded.

Text that names a file or an address may come from a model or a dataset: files are read below allowed folders alone, and
addresses are fetched only by what the caller gives for it (`tools.fetch_image`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from agentfly_lib.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "FORMATS",
    "MAX_ASPECT",
    "MAX_BYTES",
    "MAX_PIXELS",
    "NO_ACCESS",
    "ImageAccess",
    "Picture",
    "data_url",
    "digest_of",
    "load_picture",
]

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_BYTES = 20 * 2**20
"""Of a file."""
MAX_PIXELS = 2**26
"""Of a picture; 200 MB when decoded."""
MAX_ASPECT = 200
"""Long side to short side; vision towers of the Qwen family take no more."""
MIN_SIDE = 4
"""Smaller sides are taken for channels of colour by image processors; such a picture is enlarged."""

_KEPT = ("PNG", "JPEG", "WEBP")
_ORIENTATION = 0x0112
_SVG = re.compile(
    # Atomic and possessive throughout: a file of many comments must not be split in every possible way.
    rb"\s*+(?><\?xml[^>]*>\s*+)?+(?:(?><!--.*?-->)\s*+|<!DOCTYPE[^>]*>\s*+)*+<svg[\s>]",
    re.DOTALL | re.IGNORECASE,
)
_DATA_URL = re.compile(r"data:(?P<kind>[^;,]*)(?P<more>(;[^;,]*)*),", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that was checked: it opens, is RGB, and stays within the bounds."""

    data: bytes
    """A PNG, JPEG or WebP file."""
    digest: str
    """SHA-256 of `data`, hexadecimal."""
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageAccess:
    """What text may name, where a picture is asked for."""

    folders: tuple[Path, ...] = ()
    """Files below them may be read; a path that is not absolute is looked for in each of them in turn."""
    fetch: Callable[[str], bytes] | None = None
    """Fetches an http or https address, within bounds, or raises `ImageError`."""


NO_ACCESS = ImageAccess()
"""Text may hold a picture, and name none."""


def digest_of(data: bytes) -> str:
    """The name of a picture's file: SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def data_url(data: bytes) -> str:
    """The file of a picture that was loaded, as a URL that holds it."""
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg" if data.startswith(b"\xff\xd8") else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def load_picture(source: Any, *, access: ImageAccess = NO_ACCESS) -> Picture:
    """A picture from the bytes of an image file, a PIL image, pixels [H, W, 3] as an array, a path, or text.

    Text is a `data:` URL, base64, or what `access` allows: the path of a file, an http(s) address. A `Path` object is
    read wherever it lies, because code has made it. Also takes the `{"bytes": ..., "path": ...}` of `datasets`.

    Raises `ImageError` saying what is wrong with the picture.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, Mapping):
        data, path = source.get("bytes"), source.get("path")
        return load_picture(path if data is None else data, access=access)
    if isinstance(source, bytes | bytearray | memoryview):
        return _from_file(bytes(source))
    if isinstance(source, os.PathLike):
        return _from_file(_read(Path(source)))
    if isinstance(source, str):
        try:
            data = _of_text(source, access)
        except ImageError:
            raise
        except (ValueError, OSError) as error:  # no address, or a name that no file can have
            raise ImageError(f"the image {_short(source)} cannot be read: {type(error).__name__}: {error}") from error
        return _from_file(data)
    return _from_pixels(source)


def _of_text(text: str, access: ImageAccess) -> bytes:
    if len(text) > 2 * MAX_BYTES:
        raise ImageError(f"an image written in {len(text)} characters is too large; the limit is {2 * MAX_BYTES}")
    if match := _DATA_URL.match(text):
        body = text[match.end() :]
        return _base64(body) if ";base64" in match["more"].lower() else unquote_to_bytes(body)
    scheme = urlsplit(text[:64]).scheme.lower() if "://" in text[:64] else ""
    if scheme in ("http", "https"):
        if access.fetch is None:
            raise ImageError(f"the image {_short(text)} would have to be fetched, which is not allowed here")
        return access.fetch(text)
    if scheme not in ("", "file"):
        raise ImageError(f"the image {_short(text)} has an address with {scheme}://, which is not read")
    if len(text) > 4096 or "\0" in text:
        return _base64(text)
    return _read(_allowed_file(unquote(urlsplit(text).path) if scheme else text, access.folders))


def _allowed_file(name: str, folders: tuple[Path, ...]) -> Path:
    """The file that a text names, if it lies below one of the folders, links followed."""
    if not folders:
        raise ImageError(f"the image {_short(name)} is named by a path, but no folder is allowed for images")
    for folder in folders:
        root = folder.resolve()
        path = (root / name).resolve()
        if path.is_relative_to(root) and path.exists():
            return path
    where = ", ".join(map(str, folders))
    raise ImageError(f"there is no image {_short(name)} below {where}, where images may be read")


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ImageError(f"the image {path} is not a file")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ImageError(f"the image {path} cannot be read: {error.strerror}") from error
    try:
        return _bounded(data)
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for a writer


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError(f"an image is written as {_short(text)}, which is neither a file's name nor base64") from error


def _bounded(data: bytes) -> bytes:
    if not data:
        raise ImageError("the image is empty")
    if len(data) > MAX_BYTES:
        raise ImageError(f"the image is larger than {MAX_BYTES >> 20} MiB")
    return data


def _from_file(data: bytes) -> Picture:
    from PIL import Image

    _bounded(data)
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            kind = opened.format
            _check_size(opened.size)
            moves = getattr(opened, "is_animated", False)
            opened.load()
            plain = opened.mode == "RGB" and not opened.has_transparency_data and min(opened.size) >= MIN_SIDE
            if kind in _KEPT and plain and not moves and _upright(opened):
                return Picture(data, digest_of(data), opened.width, opened.height)
            return _encoded(opened)
    except ImageError:
        raise
    except Image.UnidentifiedImageError as error:
        raise ImageError(_unknown(data)) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"the image has too many pixels; the limit is {MAX_PIXELS}") from error
    except Exception as error:  # decoders raise whatever a hostile file makes them
        raise ImageError(f"the image is damaged: {_one_line(error)}") from error


def _from_pixels(source: Any) -> Picture:
    from PIL import Image

    image = source
    if hasattr(source, "__array_interface__") and not isinstance(source, Image.Image):
        try:
            image = Image.fromarray(source)
        except (TypeError, ValueError, KeyError) as error:
            raise ImageError(
                f"an array of shape {getattr(source, 'shape', '?')} is not an image: give one of shape [H, W, 3]"
            ) from error
    if not isinstance(image, Image.Image):
        raise ImageError(f"a {type(source).__name__} is not an image: give bytes, a path, a data: URL or a PIL image")
    _check_size(image.size)
    try:
        return _encoded(image)
    except ImageError:
        raise
    except Exception as error:  # a file that was opened, and is read only now, by a decoder that may raise anything
        raise ImageError(f"the image is damaged: {_one_line(error)}") from error


def _encoded(image: Image) -> Picture:
    """As a PNG in RGB."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    rgb = _rgb(ImageOps.exif_transpose(image))
    if min(rgb.size) < MIN_SIDE:
        times = -(-MIN_SIDE // min(rgb.size))
        rgb = rgb.resize((rgb.width * times, rgb.height * times), Resampling.NEAREST)
    file = io.BytesIO()
    rgb.save(file, format="PNG", compress_level=1, icc_profile=None)
    data = file.getvalue()
    if len(data) > MAX_BYTES:
        raise ImageError(
            f"the image of {rgb.width} x {rgb.height} pixels is larger than {MAX_BYTES >> 20} MiB as a PNG"
        )
    return Picture(data, digest_of(data), rgb.width, rgb.height)


def _rgb(image: Image) -> Image:
    from PIL import Image as Images

    if image.mode.startswith("I"):  # 16 bits in the lower half of 32
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Images.new("RGBA", image.size, "white")
        return Images.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _upright(image: Image) -> bool:
    return image.getexif().get(_ORIENTATION, 1) == 1


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"the image has no pixels: {width} x {height}")
    if width * height > MAX_PIXELS:
        raise ImageError(f"the image has {width} x {height} pixels; the limit is {MAX_PIXELS}")
    if max(size) > MAX_ASPECT * min(size):
        raise ImageError(
            f"the image is {width} x {height} pixels; its long side may be at most {MAX_ASPECT} times its short side"
        )


def _unknown(data: bytes) -> str:
    if _SVG.match(data[:4096]):
        return "the image is an SVG drawing; save it as PNG first"
    return f"{len(data)} bytes that are no image of a kind that is read ({', '.join(FORMATS)})"


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
