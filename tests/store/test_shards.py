"""Parts come back bit for bit, and a bad part is named."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentfly_lib.errors import ShardError
from agentfly_lib.store.shards import ROLLOUTS, PartRows, inspect_part, read_index, read_part, write_part
from agentfly_lib.types import (
    Failure,
    FailureKind,
    FinishReason,
    ImageSpan,
    Problem,
    Segment,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

# JSON can carry any text, halves of surrogate pairs included; ids are ours and are plain Unicode.
any_text = st.text(st.characters(), max_size=12)
plain_text = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
messages = st.dictionaries(any_text, json_values, max_size=3)
turns = st.builds(
    Turn,
    message=messages,
    start=st.integers(0, 2**31 - 1),
    end=st.integers(0, 2**31 - 1),
    sampled=st.booleans(),
    finish=st.none() | st.sampled_from(FinishReason),
    policy_version=st.none() | st.integers(0, 2**31 - 1),
    seconds=finite,
)
failures = st.builds(
    Failure, kind=st.sampled_from(FailureKind), message=any_text, where=any_text, attempts=st.integers(1, 9)
)


PICTURES = {hashlib.sha256(data).hexdigest(): data for data in (b"", b"one", b"\xff\xd8two", b"one" * 50)}
images = st.builds(
    lambda digest, start, more, grid: ImageSpan(digest=digest, start=start, end=start + more, grid=grid),
    st.sampled_from(sorted(PICTURES)),
    st.integers(0, 3),
    st.integers(1, 4),
    st.tuples(*[st.integers(1, 2**31 - 1)] * 3),
)


@st.composite
def segments(draw) -> Segment:
    length = draw(st.integers(0, 12))
    mask = draw(hnp.arrays(np.bool_, length))
    shown, free = [], 0
    for drawn in draw(st.lists(images, max_size=2)):
        image = dataclasses.replace(drawn, start=free + drawn.start, end=free + drawn.end)
        if image.end <= length:
            mask[image.start : image.end] = False
            shown.append(image)
            free = image.end
    versions = {"versions": draw(hnp.arrays(np.int32, length))} if draw(st.booleans()) else {}
    return Segment(
        token_ids=draw(hnp.arrays(np.int32, length)),
        loss_mask=mask,
        logprobs=draw(hnp.arrays(np.float32, length)),
        turns=tuple(draw(st.lists(turns, max_size=3))),
        images=tuple(shown),
        **versions,
    )


@st.composite
def groups(draw) -> list[TrajectoryGroup]:
    result = []
    for name in draw(st.lists(plain_text, max_size=3, unique=True)):
        chains = draw(st.permutations(range(draw(st.integers(1, 3)))))
        result.append(
            TrajectoryGroup(
                id=name,
                problem=Problem(
                    id=draw(plain_text),
                    messages=tuple(draw(st.lists(messages, max_size=2))),
                    columns=draw(st.dictionaries(any_text, json_values, max_size=2)),
                ),
                trajectories=tuple(
                    Trajectory(
                        id=f"{name}/{chain}",
                        problem_id=draw(plain_text),
                        group_id=name,
                        chain=chain,
                        segments=(of_chain := tuple(draw(st.lists(segments(), max_size=3)))),
                        stop=draw(st.sampled_from(StopReason)),
                        attempt=draw(st.integers(0, 5)),
                        env_reward=draw(st.none() | finite),
                        metrics=draw(st.dictionaries(any_text, finite, max_size=2)),
                        failure=draw(st.none() | failures),
                        pictures={
                            digest: PICTURES[digest]
                            for digest in [
                                *draw(st.lists(st.sampled_from(sorted(PICTURES)), max_size=2)),
                                *(image.digest for segment in of_chain for image in segment.images),
                            ]
                        },
                    )
                    for chain in chains
                ),
            )
        )
    return result


def _bits(group: TrajectoryGroup) -> list[bytes]:
    return [
        array.tobytes()
        for trajectory in group.trajectories
        for segment in trajectory.segments
        for array in (segment.token_ids, segment.loss_mask, segment.logprobs, segment.versions)
    ]


@settings(max_examples=60, deadline=None)
@given(groups())
def test_what_is_written_is_what_is_read(written):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part-00000.arrow"
        info = write_part(path, written, step=7, attempt=2)
        for read in (read_part(path, info), read_part(path)):
            assert read == written
            assert [_bits(group) for group in read] == [_bits(group) for group in written]
        assert inspect_part(path, step=7) == info
        rows = [(group.problem, each) for group in written for each in group.trajectories]
        with PartRows(path) as part:
            assert [part.trajectory(row) for row in range(len(part))] == rows
        index = read_index(path, info)
        assert index.ids == tuple(each.id for group in written for each in group.trajectories)
        assert index.stops == tuple(each.stop for group in written for each in group.trajectories)


def test_nan_payloads_and_negative_zero_keep_their_bits(tmp_path, make_group):
    values = np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45, 0], dtype=np.float32)
    values.view(np.uint32)[5] = 0x7FC00001  # another NaN
    group = make_group("0-0")
    segment = Segment(token_ids=np.arange(6, dtype=np.int32), loss_mask=np.ones(6, bool), logprobs=values, turns=())
    group = TrajectoryGroup(
        id=group.id,
        problem=group.problem,
        trajectories=(
            Trajectory(
                id="0-0/0",
                problem_id="p",
                group_id="0-0",
                chain=0,
                segments=(segment,),
                stop=StopReason.FINISHED,
                env_reward=-0.0,
            ),
        ),
    )
    write_part(tmp_path / "p.arrow", [group], step=0)
    (read,) = read_part(tmp_path / "p.arrow")[0].trajectories
    assert read.segments[0].logprobs.view(np.uint32).tolist() == values.view(np.uint32).tolist()
    assert str(read.env_reward) == "-0.0"
    assert read.reward is None


def _seeing(group: TrajectoryGroup, *pictures: bytes) -> TrajectoryGroup:
    named = {hashlib.sha256(data).hexdigest(): data for data in pictures}
    spans = tuple(
        ImageSpan(digest=digest, start=number, end=number + 1, grid=(1, 2, 2)) for number, digest in enumerate(named)
    )
    trajectories = tuple(
        dataclasses.replace(
            each, pictures=named, segments=tuple(dataclasses.replace(part, images=spans) for part in each.segments)
        )
        for each in group.trajectories
    )
    return dataclasses.replace(group, trajectories=trajectories)


class TestPictures:
    def test_each_is_in_the_part_once_and_comes_back_to_all_who_have_it(self, tmp_path, make_group):
        first, second, third = (os.urandom(50_000) for _ in range(3))
        written = [_seeing(make_group("0-0"), first, second), _seeing(make_group("0-1"), second, third)]
        info = write_part(tmp_path / "p.arrow", written, step=0)
        assert 150_000 < info.bytes < 200_000
        assert read_part(tmp_path / "p.arrow", info) == written

    def test_a_problem_names_those_that_the_part_holds_anyway(self, tmp_path, make_group):
        known, other = os.urandom(50_000), os.urandom(1_000)
        urls = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in (known, other)]
        odd = [urls[0].replace("=", ""), urls[0] + "\n", "data:image/png;base64,@", "data:image/png"]
        part = {"type": "image", "image": urls[0]}
        problem = Problem(
            id="p",
            messages=({"role": "user", "content": [part, {"type": "text", "text": "?"}]},),
            columns={"image": urls[0], "images": urls, "deep": {"x": [urls[0], *odd]}, "pictures": "mine"},
        )
        group = dataclasses.replace(_seeing(make_group("0-0"), known), problem=problem)
        blind = dataclasses.replace(group.trajectories[1], pictures={}, segments=())
        group = dataclasses.replace(group, trajectories=(group.trajectories[0], blind))
        info = write_part(tmp_path / "p.arrow", [make_group("0-1"), group], step=0)
        assert info.bytes < 120_000 + len("".join(odd))
        assert read_part(tmp_path / "p.arrow", info)[1] == group
        with PartRows(tmp_path / "p.arrow") as rows:
            for row, trajectory in zip((2, 3), group.trajectories, strict=True):
                assert rows.trajectory(row) == (problem, trajectory)

    def test_one_that_is_not_what_its_name_says_is_refused(self, tmp_path, make_group):
        (digest,) = _seeing(make_group("0-0"), b"one").trajectories[0].pictures
        seeing = _seeing(make_group("0-0"), b"one")
        other = tuple(dataclasses.replace(each, pictures={digest: b"two"}) for each in seeing.trajectories)
        with pytest.raises(ValueError, match="is another one"):
            write_part(tmp_path / "p.arrow", [dataclasses.replace(seeing, trajectories=other)], step=0)
        assert os.listdir(tmp_path) == []


class TestSingleRows:
    def test_are_read_from_any_batch_with_pictures_that_an_earlier_row_brought(self, tmp_path, make_group):
        written = [_seeing(make_group(f"0-{number}"), b"all", b"%d" % (number // 40)) for number in range(100)]
        write_part(tmp_path / "p.arrow", written, step=0)
        with PartRows(tmp_path / "p.arrow") as part:
            rows = [each for group in written for each in group.trajectories]
            assert len(part) == len(rows) > 128
            for row in (0, 63, 64, 127, 128, len(rows) - 1):
                assert part.trajectory(row)[1] == rows[row]
            for row in (-1, len(rows)):
                with pytest.raises(IndexError, match=f"there is no row {row}"):
                    part.trajectory(row)

    def test_of_a_damaged_part_are_refused_by_its_name_or_are_what_it_says(self, tmp_path, make_group):
        path = tmp_path / "p.arrow"
        write_part(path, [make_group(f"0-{number}") for number in range(30)], step=0)
        data, faults = path.read_bytes(), []
        for position in range(8, len(data), 211):
            path.write_bytes(data[:position] + bytes(20) + data[position + 20 :])
            try:
                with PartRows(path) as part:
                    for row in (0, 47, 48, 59):
                        part.trajectory(row)
            except ShardError as error:
                faults.append(str(error))
        assert len(faults) > 5
        assert all(str(path) in fault for fault in faults)

    @pytest.mark.parametrize("data", [b"", b"not an Arrow file", b"ARROW1\0\0" + bytes(100)])
    def test_of_what_is_no_part_are_refused(self, tmp_path, data):
        (tmp_path / "p.arrow").write_bytes(data)
        with pytest.raises(ShardError, match=r"p\.arrow"):
            PartRows(tmp_path / "p.arrow")
        with pytest.raises(ShardError, match="cannot read"):
            PartRows(tmp_path / "missing.arrow")


class TestVersionOne:
    """A file that the first schema's own code has written."""

    PART = Path(__file__).parent / "golden" / "rollouts-v1.arrow"

    def test_is_read_as_what_it_holds(self):
        first, second = read_part(self.PART)
        called, again = first.trajectories[0].segments
        assert (first.id, second.id, first.problem.columns["deep"]) == ("3-0", "3-1", {"x": [1, None]})
        assert called.token_ids.tolist() == [1, 2, 3, 10, 11, 4, 5, 12, 6]
        assert called.versions.tolist() == [-1, -1, -1, 7, 7, -1, -1, 8, 8]
        logprobs = np.array([np.nan] * 3 + [-0.5, -0.25] + [np.nan] * 3 + [-0.0], np.float32)
        assert called.logprobs.tobytes() == logprobs.tobytes()
        assert [turn.message["role"] for turn in called.turns] == ["assistant", "tool", "assistant"]
        assert again.turns[0].message["content"] == "\ud83d half"
        assert first.trajectories[0].env_reward == 0.75
        assert first.trajectories[1].failure == Failure(
            kind=FailureKind.TOOL, message="gone", where="tool:calculator", attempts=3
        )
        assert all(not each.pictures for group in (first, second) for each in group.trajectories)

    def test_its_index_and_its_step_too(self):
        with PartRows(self.PART) as part:
            assert [part.trajectory(row)[1].id for row in range(len(part))] == ["3-0/0", "3-0/1", "3-1/0"]
        assert read_index(self.PART).ids == ("3-0/0", "3-0/1", "3-1/0")
        assert inspect_part(self.PART, step=3).groups == ("3-0", "3-1")

    def test_what_was_read_is_written_in_the_present_version(self, tmp_path):
        read = read_part(self.PART)
        write_part(tmp_path / "p.arrow", read, step=3)
        assert pa.ipc.open_file(tmp_path / "p.arrow").schema.equals(ROLLOUTS.schema)
        assert read_part(tmp_path / "p.arrow") == read


class TestVersionTwo:
    """A file of the first release of this schema, whose texts are all Python's."""

    PART = Path(__file__).parent / "golden" / "rollouts-v2.arrow"

    def test_is_read_as_what_it_holds(self):
        (group,) = read_part(self.PART)
        finished, failed = group.trajectories
        (segment,) = finished.segments
        assert group.problem.columns == {"big": 2**70, "deep": {"x": [1, None]}}
        assert segment.token_ids.tolist() == [1, 2, 3, 10, 11, 4, 12]
        assert segment.versions.tolist() == [-1, -1, -1, 7, 8, -1, 8]
        logprobs = np.array([np.nan] * 3 + [-0.5, -0.25, np.nan, -0.0], np.float32)
        assert segment.logprobs.tobytes() == logprobs.tobytes()
        said, answered, ended = segment.turns
        assert said.message["content"] == "\ud83d half \N{SNOWMAN}"
        assert said.message["big"] == 2**70
        assert said.message["nan"] == [None, float("inf")]
        assert (said.finish, said.policy_version, said.seconds) == (FinishReason.STOP, 7, 0.25)
        assert (answered.reward, ended.finish, ended.answer) == (0.5, FinishReason.LENGTH, "4")
        (digest,) = finished.pictures
        assert finished.pictures[digest] == b"a picture"
        assert segment.images == (ImageSpan(digest=digest, start=1, end=3, grid=(1, 2, 4)),)
        assert (finished.env_reward, finished.metrics) == (0.75, {"tool_calls": 1.0})
        assert failed.failure == Failure(kind=FailureKind.TOOL, message="gone", where="tool:x", attempts=3)
        with PartRows(self.PART) as part:
            assert [part.trajectory(row)[1] for row in range(2)] == [finished, failed]


def test_the_schema_does_not_depend_on_what_messages_and_columns_hold(tmp_path, make_group):
    write_part(tmp_path / "a.arrow", [make_group("0-0")], step=0)
    plain = make_group("0-0")
    odd = TrajectoryGroup(
        id="0-0",
        problem=Problem(id="p", messages=(), columns={"tests": [{"in": 1}, {"out": None}], "n": {"deep": [[]]}}),
        trajectories=plain.trajectories,
    )
    write_part(tmp_path / "b.arrow", [odd], step=0)
    schemas = [pa.ipc.open_file(tmp_path / name).schema for name in ("a.arrow", "b.arrow")]
    assert schemas[0].equals(schemas[1], check_metadata=True)
    assert schemas[0].equals(ROLLOUTS.schema)
    assert read_part(tmp_path / "b.arrow")[0].problem == odd.problem


def test_arrays_that_are_read_cannot_be_changed_by_accident(tmp_path, make_group):
    write_part(tmp_path / "p.arrow", [make_group("0-0")], step=0)
    segment = read_part(tmp_path / "p.arrow")[0].trajectories[0].segments[0]
    for array in (segment.token_ids, segment.loss_mask, segment.logprobs, segment.versions):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


class TestRefusals:
    def test_a_group_twice(self, tmp_path, make_group):
        with pytest.raises(ValueError, match="group 0-0 appears twice"):
            write_part(tmp_path / "p.arrow", [make_group("0-0"), make_group("0-0")], step=0)

    def test_a_group_without_trajectories(self, tmp_path, make_group):
        with pytest.raises(ValueError, match="group 0-0 has no trajectories"):
            write_part(tmp_path / "p.arrow", [make_group("0-0", stops=())], step=0)

    def test_a_value_that_json_cannot_carry(self, tmp_path, make_group):
        group = make_group("0-0")
        problem = Problem(id="p9", messages=(), columns={"x": np.float32(1)})
        group = TrajectoryGroup(id=group.id, problem=problem, trajectories=group.trajectories)
        with pytest.raises(TypeError, match="problem p9 holds a value that JSON cannot carry"):
            write_part(tmp_path / "p.arrow", [group], step=0)
        assert os.listdir(tmp_path) == []


SPAN = {
    "segment": 0,
    "digest": hashlib.sha256(b"one").hexdigest(),
    "start": 0,
    "end": 1,
    "frames": 1,
    "rows": 1,
    "columns": 1,
}


class TestBadFiles:
    """Every fault is a `ShardError` that names the file."""

    @pytest.fixture
    def part(self, tmp_path, make_group):
        path = tmp_path / "part-00004.arrow"
        return path, write_part(path, [_seeing(make_group(name), b"one") for name in ("0-0", "0-1")], step=0)

    def test_missing(self, part):
        path, info = part
        path.unlink()
        with pytest.raises(ShardError, match=r"part-00004\.arrow is missing"):
            read_part(path, info)

    @pytest.mark.parametrize("keep", [0, 1, 7, 100, -1, -8])
    def test_truncated(self, part, keep):
        path, info = part
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ShardError, match=r"part-00004\.arrow is truncated"):
            read_part(path, info)
        with pytest.raises(ShardError, match=r"part-00004\.arrow"):
            read_part(path)

    def test_one_changed_bit_anywhere(self, part):
        path, info = part
        data = path.read_bytes()
        for position in range(0, len(data), 97):
            changed = bytearray(data)
            changed[position] ^= 1
            path.write_bytes(changed)
            with pytest.raises(ShardError, match=r"part-00004\.arrow does not match its checksum"):
                read_part(path, info)

    def test_not_arrow(self, part):
        path, _ = part
        path.write_bytes(b"hello" * 100)
        with pytest.raises(ShardError, match=r"part-00004\.arrow is truncated or not an Arrow file"):
            read_part(path)

    def test_other_version(self, part):
        path, _ = part
        _rewrite(path, b"agentfly.version", b"3")
        with pytest.raises(ShardError, match="has version 3 of the rollouts schema, this program reads versions 1, 2;"):
            read_part(path)

    def test_other_kind(self, part):
        path, _ = part
        _rewrite(path, b"agentfly.kind", b"scores")
        with pytest.raises(ShardError, match="holds scores, expected rollouts"):
            read_part(path)

    def test_other_row_count(self, part):
        path, info = part
        with pytest.raises(ShardError, match="has 4 rows where its manifest says 5"):
            read_part(path, info.model_copy(update={"rows": 5}))
        _rewrite(path, b"agentfly.rows", b"3")
        with pytest.raises(ShardError, match="has 4 rows where its header says 3"):
            read_part(path)

    def test_other_groups(self, part):
        path, info = part
        with pytest.raises(ShardError, match="does not hold the groups"):
            read_part(path, info.model_copy(update={"groups": ("0-0", "0-9")}))

    def test_other_step(self, part):
        path, _ = part
        with pytest.raises(ShardError, match="written for step 0, not for step 5"):
            inspect_part(path, step=5)

    def test_lengths_that_contradict_each_other(self, part):
        path, _ = part
        table = pa.ipc.open_file(path).read_all()
        position = table.schema.get_field_index("segment_lengths")
        wrong = pa.array([[5]] * table.num_rows, pa.list_(pa.int32()))
        _write(path, table.set_column(position, "segment_lengths", wrong))
        with pytest.raises(ShardError, match="segment lengths do not add up"):
            read_part(path)

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("stop", "exploded"),
            ("stop", None),
            ("turns", "["),
            ("turns", "[[{}]]"),
            ("turns", "3"),
            ("turns", "[]"),
            ("turns", "[" * 100_000),
            ("metrics", "{"),
            ("metrics", None),
            ("failure", '{"kind": "boredom", "message": "", "where": "", "attempts": 1}'),
            ("failure", "3"),
            ("group_id", None),
            ("token_ids", None),
            ("token_ids", [None]),
            ("versions", None),
            ("versions", [1]),
            ("images", [{**SPAN, "digest": "0" * 64}]),
            ("images", [{**SPAN, "end": 9}]),
            ("images", [{**SPAN, "segment": 1}]),
            ("images", [{**SPAN, "rows": None}]),
            ("images", None),
            ("pictures", ["0" * 64]),
            ("pictures", None),
            ("picture_bytes", [b"of nobody"]),
            ("segment_lengths", [-1, 1]),
            ("segment_lengths", [2_000_000_000]),
            ("problem", "{}"),
            ("problem", "x"),
        ],
    )
    def test_rows_that_nobody_wrote_are_named_by_their_file(self, part, column, value):
        path, _ = part
        table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
        position = table.schema.get_field_index(column)
        field = table.schema.field(position)
        values = pa.array([value] * table.num_rows, pa.string() if column == "problem" else field.type)
        table = table.set_column(position, field, values.dictionary_encode() if column == "problem" else values)
        _write(path, table)
        with pytest.raises(ShardError, match=re.escape(str(path))):
            read_part(path)
        with pytest.raises(ShardError, match=re.escape(str(path))):
            inspect_part(path, step=0)
        if column == "stop":
            with pytest.raises(ShardError, match=re.escape(str(path))):
                read_index(path)


def _rewrite(path: Path, key: bytes, value: bytes) -> None:
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    _write(path, table.replace_schema_metadata({**table.schema.metadata, key: value}))


def _write(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.slow
def test_ten_thousand_trajectories_of_a_thousand_tokens(tmp_path, make_group):
    groups = [make_group(f"0-{index}", stops=(StopReason.FINISHED,) * 8, length=1000) for index in range(1250)]
    info = write_part(tmp_path / "p.arrow", groups, step=0)
    read = read_part(tmp_path / "p.arrow", info)
    assert (len(read), info.rows) == (1250, 10_000)
    assert read[-1] == groups[-1]
