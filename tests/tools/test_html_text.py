"""The text of pages, good and bad."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentfly_lib.tools.html_text import html_to_text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>Hello <b>you</b></p>", "Hello you"),
        ("<title>T</title><body><h1>Head</h1>one<br>two", "T\nHead\none\ntwo"),
        ("a<script>var x = '<p>no</p>';</script>b<style>p {}</style>c", "abc"),
        ("a<SCRIPT>no</SCRIPT >b", "ab"),
        ("a<script/>b", "ab"),
        ("a<!-- no <p> -->b", "ab"),
        ("<ul><li>one<li>two</ul>", "- one\n- two"),
        ("<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", "1 | 2\n3"),
        ("&lt;tag&gt; &amp; &#8364; &nbsp; x", "<tag> & € x"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<!DOCTYPE html><?xml x?>text", "text"),
        ("lots\n\n  of   space", "lots\nof space"),
        ("text <unfinished", "text"),
        ("a<!-- unfinished", "a"),
        ("a<script>unfinished", "a"),
        ("<İ>x", "<İ>x"),
        ("", ""),
    ],
)
def test_pages(page, text):
    assert html_to_text(page) == text


@pytest.mark.parametrize("piece", ["<", "<!--", "<script>", "</p", "<p ", "&", "<a href='", "<script/><!", "< <"])
def test_time_is_linear_in_the_length(piece):
    """A quadratic one would be at this for hours, and run into the time limit of the tests."""
    assert len(html_to_text(piece * (1_000_000 // len(piece)))) <= 1_000_000


@given(st.text(alphabet="<>!-/ abpscript&;\n'\"", max_size=80))
def test_any_text_is_a_page(page):
    assert isinstance(html_to_text(page), str)
