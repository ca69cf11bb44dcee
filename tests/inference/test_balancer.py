"""Requests go where their prefix is known, as long as there is room; nobody gets more than a bounded share."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentfly_lib.inference.balancer import PrefixBalancer, prefix_hashes

PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def prompt(seed: int, length: int = 100) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


@given(PROMPTS, st.lists(st.integers(0, 3), max_size=24))
def test_a_hash_covers_its_block_and_all_before_it(first, more):
    hashes = prefix_hashes(first, block=4)
    assert len(hashes) == len(first) // 4
    assert prefix_hashes([*first, *more], block=4)[: len(hashes)] == hashes
    changed = [first[0] + 1, *first[1:]]
    assert not set(prefix_hashes(changed, block=4)) & set(hashes)


class Balancing(RuleBasedStateMachine):
    """Any order of asking, answering, leaving and joining."""

    @initialize(slack=st.sampled_from([1.0, 1.25, 2.0]), engines=st.integers(1, 5))
    def begin(self, slack, engines):
        self.slack = slack
        self.balancer = PrefixBalancer([f"e{n}" for n in range(engines)], slack=slack, block=4, remembered=40)
        self.flying: list[str] = []

    @rule(token_ids=PROMPTS)
    def ask(self, token_ids):
        name = self.balancer.choose(token_ids)
        if not self.balancer.names:
            assert name is None
            return
        assert name in self.balancer.names
        self.flying.append(name)
        mean = len(self.flying) / len(self.balancer.names)
        assert self.balancer.load(name) <= math.ceil(self.slack * mean), "nobody gets more than its bounded share"

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def answer(self, data):
        self.balancer.done(self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1))))

    @rule(number=st.integers(0, 5))
    def leave(self, number):
        self.balancer.leave(f"e{number}")
        self.flying = [name for name in self.flying if name != f"e{number}"]

    @rule(number=st.integers(0, 5), owed=st.integers(0, 3))
    def join(self, number, owed):
        name = f"e{number}"
        if name not in self.balancer.names:
            self.flying += [name] * owed
        self.balancer.join(name, load=owed)

    @invariant()
    def counts_what_flies(self):
        for name in getattr(self, "balancer", PrefixBalancer()).names:
            assert self.balancer.load(name) == self.flying.count(name)


TestBalancing = Balancing.TestCase
TestBalancing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(2, 6), st.integers(0, 1000), st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(deadline=None)
def test_a_chain_stays_where_it_began_while_there_is_room(engines, seed, turns):
    balancer = PrefixBalancer([f"e{n}" for n in range(engines)])
    others = [balancer.choose(prompt(1000 + n)) for n in range(4 * engines)]  # so that there is room everywhere
    token_ids = prompt(seed)
    first = balancer.choose(token_ids)
    assert first is not None
    for length in turns:
        balancer.done(first)
        token_ids = token_ids + prompt(seed + length, length)
        if balancer.load(first) < math.ceil(1.25 * (len(others) + 1) / engines):
            assert balancer.choose(token_ids) == first
        else:
            return


def test_chains_of_a_group_share_an_engine_up_to_the_bound():
    balancer = PrefixBalancer([f"e{n}" for n in range(4)])
    for group in range(64):
        balancer.choose(prompt(group))
    loads = [balancer.load(f"e{n}") for n in range(4)]
    assert max(loads) <= math.ceil(1.25 * 64 / 4)
    again = [balancer.choose(prompt(group)) for group in range(8) for _ in range(2)]
    assert sum(a == b for a, b in zip(again[::2], again[1::2], strict=True)) >= 6


def test_a_shared_beginning_does_not_draw_everything_to_one_engine():
    balancer, system = PrefixBalancer(["a", "b", "c"]), prompt(0, 256)
    for problem in range(90):
        balancer.choose([*system, *prompt(problem + 1, 64)])
    assert all(24 <= balancer.load(name) <= 38 for name in "abc")


def test_another_client_sends_a_new_prompt_to_the_same_engine():
    names = [f"e{n}" for n in range(4)]
    chosen = [PrefixBalancer(names).choose(prompt(seed)) for seed in range(200)]
    assert chosen == [PrefixBalancer(reversed(names)).choose(prompt(seed)) for seed in range(200)]
    assert all(30 <= chosen.count(name) <= 70 for name in names)


def test_when_an_engine_leaves_only_its_prompts_move_and_when_it_is_back_they_return():
    names = [f"e{n}" for n in range(4)]
    before = [PrefixBalancer(names).choose(prompt(seed)) for seed in range(200)]
    after = [PrefixBalancer(names[1:]).choose(prompt(seed)) for seed in range(200)]
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "e0")

    balancer = PrefixBalancer(names)
    for seed in range(40):
        balancer.choose(prompt(seed))
    balancer.leave("e0")
    assert balancer.load("e0") == 0
    assert all(balancer.choose(prompt(seed)) != "e0" for seed in range(40))
    balancer.join("e0")
    assert "e0" in [balancer.choose(prompt(seed)) for seed in range(100, 120)]


def test_an_engine_that_was_tried_is_not_chosen_again():
    balancer = PrefixBalancer(["a", "b"])
    first = balancer.choose(prompt(1))
    assert {first, balancer.choose(prompt(1), avoid={first})} == {"a", "b"}
    assert balancer.choose(prompt(1), avoid={"a", "b"}) is None
    assert PrefixBalancer().choose(prompt(1)) is None


def test_the_oldest_prompts_are_forgotten():
    balancer = PrefixBalancer(["a", "b"], remembered=30)
    for seed in range(1000):
        balancer.choose(prompt(seed))
    assert len(balancer._holders) == 30


def test_a_slack_below_one_is_refused():
    with pytest.raises(ValueError, match="below 1"):
        PrefixBalancer(["a"], slack=0.9)
