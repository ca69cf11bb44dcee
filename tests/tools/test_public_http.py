"""What a model asks for reaches public addresses only, however it is spelled and wherever it is sent on to."""

from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace

import httpx
import pytest

from agentfly_lib.tools.public_http import AddressRefused, PublicTransport, is_public, parse_networks


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "240.0.0.1", "198.18.0.1",
        "::1", "::", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2001:0:1::1",
    ],
)  # fmt: skip
def test_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_public(address):
    assert is_public(ipaddress.ip_address(address))


async def test_addresses_of_the_internet_that_are_ours_are_refused(monkeypatch):
    """A university's machine, or one in a cloud, has them; so has every machine with IPv6."""
    card = [
        SimpleNamespace(family=socket.AF_INET, address="131.159.1.7", netmask="255.255.255.0"),
        SimpleNamespace(family=socket.AF_INET6, address="2a00:4700::7%eth0", netmask="ffff:ffff:ffff:ffff::"),
        SimpleNamespace(family=socket.AF_INET6, address="2a00:4701::9", netmask=None),
        SimpleNamespace(family=socket.AF_PACKET, address="00:00:00:00:00:00", netmask=None),
    ]
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"eth0": card})
    own = ("131.159.1.7", "131.159.1.200", "::ffff:131.159.1.9", "2a00:4700::1", "2a00:4701::9", "64:ff9b::839f:109")
    for address in (*own, "168.63.129.16", "8.8.8.8", "64:ff9b::808:808"):
        web = Web(inside_org=[address])
        with pytest.raises(AddressRefused, match="no public address"):
            await web.client(denied=("8.8.8.0/24",)).get("http://inside.org/")
        assert (await web.client(address).get("http://inside.org/")).text == "page"
    for address in ("131.159.2.1", "2a00:4702::1", "2a00:4701::8", "1.1.1.1"):
        assert (await Web(out_org=[address]).client().get("http://out.org/")).text == "page"


class Web:
    """Hosts by name, and pages by the address that is connected to."""

    def __init__(self, **hosts: list[str]) -> None:
        self.hosts = hosts
        self.seen: list[httpx.Request] = []
        self.pages: dict[str, httpx.Response] = {}

    async def resolve(self, host: str, port: int) -> list[str]:
        try:
            return self.hosts[host.replace(".", "_")]
        except KeyError:
            raise OSError(host) from None

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return self.pages.get(request.url.path, httpx.Response(200, text="page"))

    def client(self, *allowed: str, denied: tuple[str, ...] = ()) -> httpx.AsyncClient:
        transport = PublicTransport(
            allowed=parse_networks(allowed),
            denied=parse_networks(denied),
            resolve=self.resolve,
            inner=httpx.MockTransport(self.handle),
        )
        return httpx.AsyncClient(transport=transport, follow_redirects=True, max_redirects=3)


async def test_the_connection_goes_to_the_address_that_was_looked_at_under_the_name_asked_for():
    web = Web(example_org=["93.184.215.14"])
    assert (await web.client().get("https://example.org:8443/a?b=c")).text == "page"
    (request,) = web.seen
    assert str(request.url) == "https://93.184.215.14:8443/a?b=c"
    assert request.headers["host"] == "example.org:8443"
    assert request.extensions["sni_hostname"] == "example.org"


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1"], ["::1"], ["93.184.215.14", "127.0.0.1"], ["fe80::1%eth0"]]
)
async def test_a_name_that_leads_inside_is_refused_before_anything_is_connected(addresses):
    web = Web(inside_org=addresses)
    with pytest.raises(AddressRefused, match=r"inside\.org is no public address"):
        await web.client().get("http://inside.org/")
    assert web.seen == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "017700000001", "[::1]", "[::ffff:127.0.0.1]"],
)
async def test_every_spelling_of_this_machine(host):
    transport = PublicTransport(inner=httpx.MockTransport(lambda request: httpx.Response(200)))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises((AddressRefused, httpx.ConnectError)):
            await client.get(f"http://{host}:80/")


async def test_redirects_are_looked_at_too():
    web = Web(example_org=["93.184.215.14"], inside_org=["169.254.169.254"])
    web.pages["/a"] = httpx.Response(302, headers={"location": "http://inside.org/secret"})
    with pytest.raises(AddressRefused, match=r"inside\.org"):
        await web.client().get("http://example.org/a")
    assert [request.url.path for request in web.seen] == ["/a"]


async def test_a_relative_redirect_stays_with_the_name():
    web = Web(example_org=["93.184.215.14"])
    web.pages["/a"] = httpx.Response(302, headers={"location": "/b"})
    response = await web.client().get("http://example.org/a")
    assert str(response.url) == "http://example.org/b"
    assert [request.headers["host"] for request in web.seen] == ["example.org"] * 2


async def test_allowed_networks():
    web = Web(inside_org=["10.1.2.3"])
    assert (await web.client("10.1.0.0/16").get("http://inside.org/")).text == "page"
    with pytest.raises(AddressRefused):
        await web.client("10.2.0.0/16").get("http://inside.org/")


async def test_what_is_denied_is_not_reached_by_being_allowed():
    web = Web(inside_org=["10.1.2.3"], other_org=["64:ff9b::a01:203"])
    for name in ("inside", "other"):
        client = web.client("10.0.0.0/8", "64:ff9b::/96", denied=("10.1.0.0/16",))
        with pytest.raises(AddressRefused):
            await client.get(f"http://{name}.org/")
    assert web.seen == []


async def test_other_schemes_and_hosts_that_do_not_exist():
    web = Web()
    with pytest.raises((AddressRefused, httpx.UnsupportedProtocol), match="ftp"):
        await web.client().get("ftp://example.org/")
    with pytest.raises(httpx.ConnectError, match=r"no host nowhere\.org"):
        await web.client().get("http://nowhere.org/")
