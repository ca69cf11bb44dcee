"""Pictures by address: from the hosts that are named, on the open internet, within bounds."""

from __future__ import annotations

import httpx
import pytest

from agentfly_lib.chat.images import MAX_BYTES, ImageAccess, load_picture
from agentfly_lib.errors import ImageError
from agentfly_lib.tools.fetch_image import image_fetcher
from tests.chat.vision_models import png


def fetcher(answer, hosts=("pictures.example",), seconds=20.0):
    return image_fetcher(hosts, seconds=seconds, transport=httpx.MockTransport(answer))


def test_nothing_is_fetched_unless_hosts_are_named():
    assert image_fetcher(()) is None


def test_a_picture_of_a_host_that_is_named():
    fetch = fetcher(lambda request: httpx.Response(200, content=png(8, 8)))
    assert load_picture("https://pictures.example/a", access=ImageAccess(fetch=fetch)).data == png(8, 8)


@pytest.mark.parametrize(
    "url", ["https://other.example/a.png", "https://pictures.example.evil/a", "https:///a", "ftp://pictures.example/a"]
)
def test_no_other_address(url):
    asked = []
    fetch = fetcher(lambda request: asked.append(request) or httpx.Response(200))
    with pytest.raises(ImageError):
        fetch(url)
    assert asked == []


def test_a_body_that_is_compressed_is_not_unpacked():
    fetch = fetcher(lambda request: httpx.Response(200, content=b"x", headers={"Content-Encoding": "br"}))
    with pytest.raises(ImageError, match="compressed, which was not asked for"):
        fetch("https://pictures.example/a")


@pytest.mark.parametrize("hosts", [("*.pictures.example",), ("*.PICTURES.example.",)])
def test_hosts_below_one(hosts):
    fetch = fetcher(lambda request: httpx.Response(200, content=b"x"), hosts=hosts)
    assert fetch("https://a.pictures.example/1") == b"x"
    with pytest.raises(ImageError, match="none of those"):
        fetch("https://apictures.example/1")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1/a.png", "http://10.0.0.7/a", "http://[::1]/a", "http://169.254.169.254/a"]
)
def test_loopback_and_private_addresses_are_refused_even_if_they_are_named(address):
    host = httpx.URL(address).host
    with pytest.raises(ImageError, match="is no public address"):
        image_fetcher([host])(address)


def test_a_name_that_is_a_private_address_is_refused():
    with pytest.raises(ImageError, match="localhost is no public address"):
        image_fetcher(["localhost"])("http://localhost/a.png")


class Unread(httpx.AsyncByteStream):
    def __aiter__(self):
        raise AssertionError("this is read")


class TestAnswers:
    def test_a_redirect_away_from_the_hosts_is_not_followed(self):
        fetch = fetcher(lambda request: httpx.Response(302, headers={"location": "http://127.0.0.1/secret"}))
        with pytest.raises(ImageError, match=r"'127\.0\.0\.1' is none of those"):
            fetch("https://pictures.example/a")

    def test_a_circle_of_redirects_ends(self):
        fetch = fetcher(lambda request: httpx.Response(302, headers={"location": "https://pictures.example/b"}))
        with pytest.raises(ImageError, match="redirects more than 3 times"):
            fetch("https://pictures.example/a")

    def test_the_body_of_a_redirect_is_not_read(self):
        def answer(request):
            if request.url.path == "/b":
                return httpx.Response(200, content=b"x")
            headers = {"location": "/b", "content-encoding": "gzip"}
            return httpx.Response(302, headers=headers, stream=Unread())

        assert fetcher(answer)("https://pictures.example/a") == b"x"

    def test_what_is_not_there(self):
        with pytest.raises(ImageError, match="answered 404"):
            fetcher(lambda request: httpx.Response(404))("https://pictures.example/a")

    def test_no_more_than_a_picture_is_read(self):
        fetch = fetcher(lambda request: httpx.Response(200, content=bytes(MAX_BYTES + 1)))
        with pytest.raises(ImageError, match="larger than 20 MiB"):
            fetch("https://pictures.example/a")

    def test_a_failing_connection(self):
        def broken(request):
            raise httpx.ConnectError("gone", request=request)

        with pytest.raises(ImageError, match="cannot be read: gone"):
            fetcher(broken)("https://pictures.example/a")

    async def test_inside_a_running_loop(self):
        assert fetcher(lambda request: httpx.Response(200, content=b"x"))("https://pictures.example/a") == b"x"
