"""The viewer's pages as HTML, complete without a script: every choice is a link, a form or a style sheet's.

What a model wrote is text, never markup: templates escape it, control characters are made visible, and the pages carry
a policy that lets a browser run nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from agentfly_lib.errors import UserError
from agentfly_lib.types import Problem, Trajectory, TrajectoryGroup
from agentfly_lib.viewer.text import content_text
from agentfly_lib.viewer.web.catalog import SORTS, SPLITS, Filters, Page, Row
from agentfly_lib.viewer.web.charts import reward_chart
from agentfly_lib.viewer.web.export import MOST_EXPORTED
from agentfly_lib.viewer.web.pairs import PairPage, pair_problems
from agentfly_lib.viewer.web.pictures import image_type, pictures_of
from agentfly_lib.viewer.web.shelf import Shelf
from agentfly_lib.viewer.web.spans import COLOURS, Knowledge, PictureLink, TrajectoryView, view_of
from agentfly_lib.visible import visible, without_data

__all__ = ["Viewer", "pages_environment", "question_of", "read_filters", "run_tiles"]

PAGE_ROWS = 50
_MOST_TOKENS = 60_000
"""Tokens on one page; chains beyond them have pages of their own."""
_LARGEST = 2**31 - 1
_PAIRED_CHAINS = 4
"""Chains of a run on the page of one problem in two runs."""


class Viewer:
    """What the pages say."""

    def __init__(self, main: Shelf, other: Shelf | None = None) -> None:
        """other: a run to hold beside the first one; its pages begin with a prefix."""
        self.main, self.other = main, other
        self._pages = pages_environment()

    def shelf(self, prefix: str) -> Shelf:
        """The run whose pages begin so. Raises `UserError` if there is none."""
        if prefix == self.main.prefix:
            return self.main
        if self.other is None:
            raise UserError("there is no other run here; name one: agentfly view RUN --other RUN")
        return self.other

    def index(self, query: Mapping[str, str], *, prefix: str = "") -> str:
        """The list of trajectories, filtered, sorted and cut into pages."""
        shelf = self.shelf(prefix)
        filters, offset = read_filters(query), max(_number(query, "offset", int) or 0, 0)
        page = shelf.catalog.find(filters, offset=offset, limit=PAGE_ROWS)
        here = f"{prefix}/"
        kept = {name: value for name, value in query.items() if value and name not in ("offset", "at", "colour")}
        return self._render(
            "index.html",
            shelf,
            page=page,
            query=query,
            filters=filters,
            tiles=run_tiles(shelf),
            chart=reward_chart({shelf.name: shelf.curve()}),
            choices={
                "step": list(reversed(shelf.catalog.steps(filters.split))),
                "stop": shelf.catalog.values("stop"),
                "outcome": shelf.catalog.values("outcome"),
                "failure": shelf.catalog.values("failure_kind"),
            },
            tools=shelf.tools(),
            orders={name: _link(here, kept, sort=name, order=_turned(filters, name)) for name in SORTS},
            links=[
                _link(f"{prefix}/{row.address}/{row.chain}", kept, at=offset + place)
                for place, row in enumerate(page.rows)
            ],
            exports=[(kind, _link(f"{prefix}/export.{kind}", kept)) for kind in MOST_EXPORTED],
            most_exported=max(MOST_EXPORTED.values()),
            earlier=_link(here, kept, offset=max(offset - PAGE_ROWS, 0)) if offset else None,
            later=_link(here, kept, offset=offset + PAGE_ROWS) if offset + len(page.rows) < page.found else None,
        )

    def group(
        self,
        step: int,
        group_id: str,
        query: Mapping[str, str],
        *,
        chain: int | None = None,
        split: str = "train",
        prefix: str = "",
    ) -> str:
        """The chains of a group side by side, or one of them alone."""
        shelf, colour = self.shelf(prefix), _colour(query)
        found = shelf.catalog.group(split, step, group_id)
        chosen = [each for each in found.trajectories if chain in (None, each.chain)]
        if not chosen:
            raise UserError(f"group {found.id} has no chain {chain}")
        knowledge = shelf.knowledge(split, step, found)
        views, left_out = _views(shelf, found, chosen, knowledge, place=(split, step))
        address = f"{split}/{step}/{quote(group_id, safe='')}"
        earlier, back, later = _neighbours(shelf, query) if chain is not None else (None, None, None)
        one = {"split": split, "step": str(step), "group": group_id} | ({} if chain is None else {"chain": str(chain)})
        return self._render(
            "group.html",
            shelf,
            split=split,
            step=step,
            group=found,
            question=question_of(found.problem) or found.id,
            address=address,
            views=views,
            left_out=left_out,
            chain=chain,
            colour=colour,
            has_tokens=shelf.chat is not None,
            unknown=_unknown(shelf, split, step, knowledge),
            exports=[(kind, _link(f"{prefix}/export.{kind}", one)) for kind in MOST_EXPORTED],
            earlier=earlier,
            back=back,
            later=later,
        )

    def pairs(self, query: Mapping[str, str]) -> str:
        """The problems that both runs have, and where they differ."""
        main, other = self.main, self.shelf("/other")
        split, offset = self._pair_split(query), max(_number(query, "offset", int) or 0, 0)
        kept = {name: value for name, value in query.items() if value and name not in ("offset", "colour")}
        page = pair_problems(
            main,
            other,
            split=split,
            step=_number(query, "step", int),
            differing=bool(query.get("differ")),
            sort=query.get("sort") or "difference",
            offset=offset,
            limit=PAGE_ROWS,
        )
        return self._render(
            "pairs.html",
            main,
            here="pairs",
            page=page,
            query=query,
            split=split,
            sort=query.get("sort") or "difference",
            differing=bool(query.get("differ")),
            steps=sorted(set(main.catalog.steps(split)) & set(other.catalog.steps(split)), reverse=True),
            chart=reward_chart({main.name: main.curve(), other.name: other.curve()}),
            links=[_link(f"/pairs/{quote(pair.problem, safe='')}", kept, split=split) for pair in page.pairs],
            earlier=_link("/pairs", kept, offset=max(offset - PAGE_ROWS, 0)) if offset else None,
            later=_link("/pairs", kept, offset=offset + PAGE_ROWS) if _more(page) else None,
        )

    def pair(self, problem: str, query: Mapping[str, str]) -> str:
        """The newest group of one problem in both runs, side by side."""
        split, step = self._pair_split(query), _number(query, "step", int)
        shelves = (self.main, self.shelf("/other"))
        rows = [shelf.catalog.newest(split, problem, step) for shelf in shelves]
        groups = [
            None if row is None else shelf.catalog.group(split, row.step, row.group_id)
            for shelf, row in zip(shelves, rows, strict=True)
        ]
        asked = next((group.problem for group in groups if group is not None), None)
        if asked is None:
            raise UserError(f"neither run has a scored trajectory of the problem {problem!r} here")
        kept = {name: value for name, value in query.items() if value and name != "colour"}
        return self._render(
            "pair.html",
            self.main,
            here="pairs",
            problem=asked,
            question=question_of(asked) or asked.id,
            split=split,
            colour=_colour(query, "ratio" if split == "train" else "mask"),
            back=_link("/pairs", kept),
            sides=[_side(shelf, split, row, group) for shelf, row, group in zip(shelves, rows, groups, strict=True)],
        )

    def picture(self, split: str, step: int, group_id: str, digest: str, *, prefix: str = "") -> tuple[bytes, str]:
        """A picture of a group and its media type. Raises `UserError` if it is not there, or is no raster image."""
        data = pictures_of(self.shelf(prefix).catalog.group(split, step, group_id)).get(digest)
        kind = None if data is None else image_type(data)
        if data is None or kind is None:
            raise UserError(f"the group has no picture {digest[:80]!r} that can be shown")
        return data, kind

    def _pair_split(self, query: Mapping[str, str]) -> str:
        """The one that is asked for; else held-out problems, if both runs were evaluated."""
        split = query.get("split")
        if not split:
            evaluated = self.main.catalog.steps("sampled") and self.shelf("/other").catalog.steps("sampled")
            return "sampled" if evaluated else "train"
        if split not in SPLITS:
            raise UserError(f"there is no split {split!r}; use one of {', '.join(SPLITS)}")
        return split

    def _render(self, template: str, shelf: Shelf, **values: Any) -> str:
        values = {"here": "other" if shelf.prefix else "run", "alone": False} | values
        return self._pages.get_template(template).render(
            run=self.main.name,
            other=None if self.other is None else self.other.name,
            shelf_name=shelf.name,
            prefix=shelf.prefix,
            colours=COLOURS,
            **values,
        )


def pages_environment() -> Environment:
    """The templates, which escape everything that is put into them."""
    pages = Environment(
        loader=PackageLoader("agentfly_lib.viewer.web"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"visible": visible, "without_data": without_data}
    return pages


def question_of(problem: Problem) -> str:
    """The last thing that the user says in a problem, on one line, cut to a heading."""
    asked = [message for message in problem.messages if message.get("role") == "user"]
    words = " ".join(content_text(asked[-1]).split()) if asked else ""
    return words if len(words) <= 200 else f"{words[:199]}…"


def read_filters(query: Mapping[str, str]) -> Filters:
    """Filters from a query string. Raises `UserError` for what is none."""
    order = query.get("order") or "descending"
    if order not in ("ascending", "descending"):
        raise UserError(f"order={order!r} must be ascending or descending")
    return Filters(
        split=query.get("split") or "train",
        step=_number(query, "step", int),
        problem=query.get("problem") or None,
        stop=query.get("stop") or None,
        outcome=query.get("outcome") or None,
        failure=query.get("failure") or None,
        tool=query.get("tool") or None,
        min_reward=_number(query, "min_reward", float),
        max_reward=_number(query, "max_reward", float),
        sort=query.get("sort") or "step",
        order=order,  # type: ignore[arg-type]
    )


def _views(
    shelf: Shelf,
    group: TrajectoryGroup,
    chains: Sequence[Trajectory],
    knowledge: Knowledge,
    *,
    place: tuple[str, int],
) -> tuple[list[TrajectoryView], list[int]]:
    """The chains that fit on a page, and the numbers of those that do not."""
    views: list[TrajectoryView] = []
    left_out: list[int] = []
    tokens, (split, step) = 0, place
    link = _picture_link(f"{shelf.prefix}/pictures/{split}/{step}/{quote(group.id, safe='')}")
    for each in chains:
        tokens += sum(map(len, each.segments))
        if views and tokens > _MOST_TOKENS:
            left_out.append(each.chain)
        else:
            views.append(view_of(each, group, chat=shelf.chat, knowledge=knowledge, newest=step, link=link))
    return views, left_out


def _unknown(shelf: Shelf, split: str, step: int, knowledge: Knowledge) -> str:
    """Why there are no ratios, if there are none."""
    if split != "train":
        return "Nothing is trained on an evaluation, so its tokens have neither ratios nor advantages."
    if knowledge.learned:
        return ""
    if shelf.catalog.directory(split, step).learned_file.exists():
        return "Nothing of this group was trained on: its rewards are all equal, or it could not be scored."
    return "Ratios are not known: this step was not trained on yet, or by a version that kept none."


def _side(shelf: Shelf, split: str, row: Row | None, group: TrajectoryGroup | None) -> dict[str, Any]:
    side: dict[str, Any] = {"name": shelf.name, "prefix": shelf.prefix, "address": "", "step": 0, "views": []}
    if row is None or group is None:
        return side | {"left_out": 0}
    knowledge = shelf.knowledge(split, row.step, group)
    views, _ = _views(shelf, group, group.trajectories[:_PAIRED_CHAINS], knowledge, place=(split, row.step))
    left_out = len(group.trajectories) - len(views)
    return side | {"address": row.address, "step": row.step, "views": views, "left_out": left_out}


def _picture_link(address: str) -> PictureLink:
    return lambda digest, data: None if image_type(data) is None else f"{address}/{digest}"


def run_tiles(shelf: Shelf) -> list[tuple[str, str, str]]:
    """What a run comes to at a glance."""
    catalog = shelf.catalog
    outcomes, rewards, held_out = catalog.outcomes(), catalog.rewards(), catalog.rewards("sampled")
    whole = sum(outcomes.values())
    tiles = [("steps", f"{len(catalog.steps()):,}", ""), ("trajectories", f"{whole:,}", "")]
    for name, points, what in (("reward", rewards, "step"), ("held-out reward", held_out, "version")):
        if points:
            (first, before), (last, now) = points[0], points[-1]
            tiles.append((name, f"{now:.3f}", f"{what} {last}, {before:.3f} in {first}"))
    tiles += [
        (name, f"{100 * outcomes[name] / whole:.1f}%", f"{outcomes[name]:,}")
        for name in ("truncated", "failed", "dropped")
        if outcomes.get(name)
    ]
    return tiles


def _neighbours(shelf: Shelf, query: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Links to the trajectory before, the list, and the trajectory after, in the list that this one was opened from."""
    place = _number(query, "at", int)
    if place is None:
        return None, None, None
    kept = {name: value for name, value in query.items() if value and name not in ("at", "colour")}
    first = max(place - 1, 0)
    around = shelf.catalog.find(read_filters(query), offset=first, limit=place - first + 2)

    def to(number: int) -> str | None:
        index = number - first
        if not 0 <= index < len(around.rows):
            return None
        row = around.rows[index]
        return _link(f"{shelf.prefix}/{row.address}/{row.chain}", {**kept, "colour": _colour(query)}, at=number)

    back = _link(f"{shelf.prefix}/", kept, offset=place // PAGE_ROWS * PAGE_ROWS)
    return to(place - 1) if place else None, back, to(place + 1)


def _turned(filters: Filters, name: str) -> str:
    """The order that a click on a column asks for: descending first."""
    return "ascending" if filters.sort == name and filters.order == "descending" else "descending"


def _colour(query: Mapping[str, str], default: str = "mask") -> str:
    colour = query.get("colour") or default
    if colour not in COLOURS:
        raise UserError(f"tokens cannot be coloured by {colour!r}; use one of {', '.join(COLOURS)}")
    return colour


def _more(page: PairPage | Page) -> bool:
    shown = len(page.pairs) if isinstance(page, PairPage) else len(page.rows)
    return page.offset + shown < page.found


def _number(query: Mapping[str, str], name: str, kind: Callable[[str], Any]) -> Any:
    text = query.get(name)
    if not text:
        return None
    try:
        number = kind(text)
    except ValueError as error:
        raise UserError(f"{name}={text!r} is not a number") from error
    if abs(number) > _LARGEST:
        raise UserError(f"{name}={text!r} is too large")
    return number


def _link(path: str, query: Mapping[str, str], **changes: object) -> str:
    values = {**query, **{name: str(value) for name, value in changes.items()}}
    return f"{path}?{urlencode(values)}" if values else path
