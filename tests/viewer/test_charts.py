"""The chart of rewards: where its points lie, what they link to, and that names are text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from agentfly_lib.viewer.web.charts import Curve, reward_chart

RUN = Curve(train=[(0, 0.0), (1, 0.5), (2, 1.0)], held_out=[(0, 0.25), (2, 0.75)], link="/?split=train&step=")


def points(line: ET.Element) -> list[tuple[float, ...]]:
    return [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]


def test_points_lie_where_their_numbers_say():
    svg = ET.fromstring(reward_chart({"demo": RUN}))
    trained, held_out = (points(line) for line in svg.iter("polyline"))
    (left, bottom), (middle, half), (right, top) = trained
    assert left < middle < right
    assert bottom > half > top  # larger rewards stand higher
    assert abs(middle - (left + right) / 2) < 0.02
    assert abs(half - (bottom + top) / 2) < 0.02
    assert [x for x, _ in held_out] == [left, right]
    assert abs(held_out[0][1] - (bottom + half) / 2) < 0.02


def test_each_point_is_a_link_that_says_where_it_leads():
    text = reward_chart({"demo": RUN})
    links = {each.attrib["href"]: each.attrib["aria-label"] for each in ET.fromstring(text).iter("a")}
    assert links["/?split=train&step=1"] == "step 1, mean reward 0.500"
    assert len(links) == 3
    assert 'role="img"' not in text  # which would hide them
    assert not list(ET.fromstring(reward_chart({"demo": Curve(train=RUN.train)})).iter("a"))


def test_many_steps_are_a_line_without_marks():
    svg = ET.fromstring(reward_chart({"demo": Curve(train=[(step, step / 7) for step in range(200)], link="/")}))
    assert not list(svg.iter("a"))
    assert len(points(next(svg.iter("polyline")))) == 200


def test_names_are_text():
    name = """<script>alert("1")</script>'&"""
    text = reward_chart({name: RUN, "other": RUN})
    assert "<script" not in text
    titles = [each.text for each in ET.fromstring(text).iter("title")]
    assert name in titles
    assert {"var(--series-1)", "var(--series-2)"} <= set(re.findall(r"var\(--series-\d\)", text))


def test_one_point_equal_rewards_and_none_at_all():
    for curve in (Curve(train=[(3, 0.0)]), Curve(train=[(0, 1.0), (1, 1.0)]), Curve(train=[], held_out=[(5, -2.0)])):
        assert "nan" not in reward_chart({"demo": curve})
    assert reward_chart({"demo": Curve(train=[])}) == ""
