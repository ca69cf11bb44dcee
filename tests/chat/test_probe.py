"""Templates that do not come to an end are found in a process that can be killed, before they are ever used."""

from __future__ import annotations

import copy

import pytest

from agentfly_lib.chat import ChatFormat, probe
from agentfly_lib.chat.templates import shipped_template
from agentfly_lib.errors import ModelError

LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
GROWTH = (
    "{% set ns = namespace(text='x' * 1000) %}{% for a in range(99) %}{% set ns.text = ns.text ~ ns.text %}{% endfor %}"
)


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(probe, "CPU_SECONDS", 1)
    probe._fault.cache_clear()


@pytest.fixture
def tokenizer(tokenizer_of):
    return copy.deepcopy(tokenizer_of(None))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("{% if tools %}" + LOOP + "{% endif %}", "did not come to an end within 1 s"),
        ("{% generation %}" + LOOP + "{% endgeneration %}", "did not come to an end within 1 s"),
        (GROWTH, "needs more than 2048 MiB|did not come to an end"),
    ],
)
def test_a_model_with_such_a_template_is_not_loaded(tokenizer, source, fault):
    tokenizer.chat_template = shipped_template("chatml") + source
    with pytest.raises(ModelError, match=f"the chat template of the model ({fault}).*agent.template"):
        ChatFormat.from_tokenizer(tokenizer, where="the model")


@pytest.mark.usefixtures("soon")
def test_nor_with_one_that_is_only_used_for_tools(tokenizer):
    tokenizer.chat_template = {"default": shipped_template("chatml"), "tool_use": LOOP}
    with pytest.raises(ModelError, match="did not come to an end"):
        ChatFormat.from_tokenizer(tokenizer)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{{ raise_exception('no') }}",
        "{{ nothing.here }}",
        "{% for message in messages %}",
        "{{ messages | tojson(indent=2) }}{{ strftime_now('%Y') }}{% for m in messages %}{% break %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_what_a_template_writes_or_refuses_is_no_matter_here(source):
    probe.probe_templates([source], {"bos_token": "<s>"}, where="here")


def test_one_template_is_tried_once(monkeypatch):
    probe.probe_templates(["once"], {}, where="here")
    monkeypatch.setattr(probe.subprocess, "run", lambda *_, **__: pytest.fail("tried again"))
    probe.probe_templates(["once"], {}, where="here")


def test_our_own_need_no_probe(tokenizer, monkeypatch):
    monkeypatch.setattr(probe, "_fault", lambda *_: pytest.fail("tried"))
    tokenizer.chat_template = shipped_template("chatml")
    ChatFormat.from_tokenizer(tokenizer)
