"""HTTP to public addresses only: what a model asks for must not reach this machine or the network that it is in, also
where those have addresses of the open internet.

A host is resolved here, all its addresses are looked at, and the connection goes to an address that was looked at, so
that a name which answers differently the second time wins nothing. Redirects come through here too. Proxies named in
the environment are not used.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psutil

from agentfly_lib.bounded import call_in_thread

__all__ = [
    "AddressRefused",
    "PublicTransport",
    "check_not_compressed",
    "is_public",
    "own_networks",
    "parse_networks",
    "streamed",
]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_CLOUDS = (ipaddress.ip_network("168.63.129.16/32"),)
"""Global addresses at which a cloud's machines find what is for them alone: Azure's."""


class AddressRefused(httpx.RequestError):
    """The address is none that may be asked."""


def is_public(address: Address) -> bool:
    """On the open internet: not loopback, private, link-local, multicast or reserved, nor a wrapping of one that is."""
    inner = _wrapped(address)
    if inner is not None:
        return is_public(inner)
    if isinstance(address, ipaddress.IPv6Address) and (address.teredo is not None or address.is_site_local):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _wrapped(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that is reached through an IPv6 one: mapped, by 6to4 or by NAT64."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def own_networks() -> tuple[Network, ...]:
    """What this machine reaches without a router, itself included."""
    found: set[Network] = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(entry.address.partition("%")[0])
                bits = ipaddress.ip_address(entry.netmask or str(_all_ones(address)))
                found.add(ipaddress.ip_network((address, int(bits).bit_count()), strict=False))
    return tuple(found)


def _all_ones(address: Address) -> Address:
    return type(address)((1 << address.max_prefixlen) - 1)


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks as `10.0.0.0/8`. Raises `ValueError`."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def check_not_compressed(response: httpx.Response) -> None:
    """Raises `httpx.DecodingError` for a body that its server has compressed, though it was asked not to.

    A few bytes of it could be gigabytes.
    """
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise httpx.DecodingError("the answer is compressed, which was not asked for", request=response.request)


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient, url: str, *, redirects: int, check: Callable[[str], None] = lambda url: None
) -> AsyncIterator[httpx.Response]:
    """The answer to a GET, its body not read yet, after at most so many redirects.

    httpx would read the body of each redirect whole, and unpack it; here none is read. check: raises for an address
    that may not be asked. Raises what it raises, and what httpx does (`httpx.TooManyRedirects`).
    """
    request = client.build_request("GET", url)
    for _ in range(redirects + 1):
        check(str(request.url))
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                yield response
                return
            request = response.next_request
        finally:
            await response.aclose()
    raise httpx.TooManyRedirects(f"{url} redirects more than {redirects} times", request=request)


async def _resolve(host: str, port: int) -> list[str]:
    # A name server that never answers holds its thread: not one of the loop's few.
    found = await call_in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(entry[4][0]) for entry in found]


class PublicTransport(httpx.AsyncBaseTransport):
    """Lets requests through to public addresses and to those in `allowed`, but to none in `denied`."""

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        denied: Sequence[Network] = (),
        resolve: Callable[[str, int], Awaitable[list[str]]] = _resolve,
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._allowed = tuple(allowed)
        self._denied = tuple(denied)
        self._resolve = resolve
        self._inner = inner or httpx.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises `AddressRefused`, before anything is connected."""
        url = request.url
        if url.scheme not in ("http", "https"):
            raise AddressRefused(f"{url.scheme}: is not allowed, only http and https", request=request)
        address = await self._address(url.host, url.port or (443 if url.scheme == "https" else 80), request)
        extensions: dict[str, Any] = {**request.extensions}
        if url.scheme == "https":
            extensions["sni_hostname"] = url.host  # the certificate is checked against the name
        checked = httpx.Request(
            request.method,
            url.copy_with(host=address),
            headers=request.headers,  # with the name in `Host`
            stream=request.stream,
            extensions=extensions,
        )
        return await self._inner.handle_async_request(checked)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()

    async def _address(self, host: str, port: int, request: httpx.Request) -> str:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"there is no host {host}", request=request) from error
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not self._may_be_asked(address):
                raise AddressRefused(f"{host} is no public address", request=request)
        if not found:
            raise httpx.ConnectError(f"there is no host {host}", request=request)
        return found[0]

    def _may_be_asked(self, address: Address) -> bool:
        reached = [each for each in (address, _wrapped(address)) if each is not None]

        def is_among(networks: Sequence[Network]) -> bool:
            return any(each in network for each in reached for network in networks)

        if is_among(self._denied):
            return False
        return is_among(self._allowed) or (is_public(address) and not is_among((*_CLOUDS, *own_networks())))
