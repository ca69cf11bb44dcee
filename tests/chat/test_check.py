"""What `agentfly template check` finds: nothing wrong with good templates, and each way in which one can be bad."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from agentfly_lib.chat import ChatFormat
from agentfly_lib.chat.check import Level, TemplateReport, check_template
from agentfly_lib.chat.literal import Escaped
from agentfly_lib.chat.templates import shipped_template
from agentfly_lib.cli import app
from agentfly_lib.errors import ConfigError
from agentfly_lib.viewer.template_report import render_report

CONTROL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
GOOD = shipped_template("chatml")


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False))
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


@pytest.fixture
def chat_of(tmp_path):
    """The format of a template's source."""

    def build(source: str) -> ChatFormat:
        path = tmp_path / "template.jinja"
        path.write_text(source)
        return ChatFormat.from_tokenizer(tokenizer(), template=str(path))

    return build


def found(report: TemplateReport, title: str) -> tuple[Level, str]:
    (finding,) = [each for each in report.findings if each.title.startswith(title)]
    return finding.level, finding.text


def changed(*changes: tuple[str, str]) -> str:
    source = GOOD
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


RESULT = '{{- "<|im_start|>user\\n<tool_response>\\n" + text(message.content) + "\\n</tool_response><|im_end|>\\n" -}}'
SYSTEM = '{%- if system or tools -%}\n    {{- "<|im_start|>system\\n" + system -}}'


class TestGood:
    def test_everything_is_ok(self, chat_of):
        report = check_template(chat_of(GOOD))
        assert report.fit_for_training
        assert {finding.level for finding in report.findings} == {Level.OK}
        assert found(report, "calls")[1] == "what the template writes is read back as it was"
        assert found(report, "history")[1] == "prefix-preserving: a conversation is one segment"
        assert found(report, "stop tokens")[1] == "<|im_end|>, <|endoftext|>"

    def test_the_sample_shows_where_the_mask_falls(self, chat_of):
        report = check_template(chat_of(GOOD))
        assert [stretch.trained for stretch in report.sample] == [False, True, False, True, False]
        assert report.sample[1].text == (
            '<tool_call>\n{"name": "look_up_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call><|im_end|>'
        )
        assert report.sample[3].text == "Yes, it will be sunny.<|im_end|>"
        assert report.sample[2].text.startswith("\n<|im_start|>user\n<tool_response>\nFriday: sunny")

    def test_thoughts_that_are_left_out_are_a_note(self, chat_of):
        report = check_template(chat_of(shipped_template("qwen3")))
        assert report.fit_for_training
        level, text = found(report, "history")
        assert (level, "new question rewrites" in text) == (Level.NOTE, True)
        assert found(report, "thoughts") == (
            Level.NOTE,
            "are left out of earlier turns after a new question: a new segment begins there",
        )

    def test_todays_date_is_a_note(self, chat_of):
        report = check_template(chat_of('{{- "" if strftime_now is defined else "" -}}' + GOOD))
        assert found(report, "date")[0] is Level.NOTE


class TestProblems:
    @pytest.mark.parametrize(
        ("source", "title", "words"),
        [
            (changed(("tool | tojson", '""')), "tool schemas", "ignores tools"),
            (changed((RESULT, "")), "tool results", "left out of the next prompt"),
            (changed((RESULT, '{{- raise_exception("no tools here") -}}')), "tool results", "no tools here"),
            (changed((SYSTEM, '{%- if tools -%}\n    {{- "<|im_start|>system\\n" -}}')), "system message", "left out"),
            (changed(("<|im_end|>", "<END>")), "stop tokens", "never stop"),
            (changed(('"arguments\\"', '"params\\"')), "calls", 'has no "arguments"'),
        ],
        ids=["no tools", "results dropped", "results refused", "no system message", "no end", "calls unreadable"],
    )
    def test_is_named(self, chat_of, source, title, words):
        report = check_template(chat_of(source))
        level, text = found(report, title)
        assert level is Level.PROBLEM
        assert words in text
        assert not report.fit_for_training

    def test_a_parser_of_another_format(self, chat_of):
        level, text = found(check_template(chat_of(GOOD), "mistral"), "calls (mistral)")
        assert level is Level.PROBLEM
        assert "as no call" in text

    def test_control_tokens_that_texts_can_make(self, chat_of):
        """With our guard taken out, which every format has."""

        class NoGuard:
            def escape(self, messages, tools, *, known=None):
                return Escaped(messages=list(messages), tools=tools and list(tools), spelling={})

        report = check_template(dataclasses.replace(chat_of(GOOD), _guard=NoGuard()))
        level, text = found(report, "control tokens")
        assert level is Level.PROBLEM
        assert "<|im_start|> in a user's text" in text
        assert "<|im_end|> in a tool result" in text

    def test_a_template_that_rewrites_between_turns_in_another_way_than_as_a_whole(self, chat_of):
        """Its generation prompt says something that its history does not: every turn is a segment of its own."""
        source = changed(
            ('{{- "<|im_start|>assistant\\n" -}}{%- endif -%}', '{{- "<|im_start|>assistant\\n\\n" -}}{%- endif -%}')
        )
        level, text = found(check_template(chat_of(source)), "history")
        assert level is Level.NOTE
        assert "segment of its own" in text

    def test_an_unknown_parser(self, chat_of):
        with pytest.raises(ConfigError, match="did you mean 'hermes'"):
            check_template(chat_of(GOOD), "hermse")


class TestPrinted:
    def test_readable_without_colour(self, chat_of):
        console = Console(width=100, record=True, color_system=None, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(render_report(check_template(chat_of(changed(("tool | tojson", '""')))), "some/model"))
        text = console.export_text()
        assert "chat template of some/model" in text
        assert "PROBLEM  tool schemas" in text
        assert "⟦Yes, it will be sunny.<|im_end|>⟧" in text
        assert "would break training" in text

    def test_what_a_template_writes_cannot_steer_the_terminal(self, chat_of):
        console = Console(width=100, record=True, color_system=None, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(render_report(check_template(chat_of("{{- '\x1b[2J' -}}" + GOOD)), "m"))
        assert "\x1b" not in console.export_text()


class TestCommand:
    @pytest.fixture
    def model(self, tmp_path) -> Path:
        made = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer, eos_token="<|im_end|>")
        made.chat_template = GOOD
        made.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    def test_exit_status(self, model, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        runner = CliRunner()
        good = runner.invoke(app, ["template", "check", str(model)])
        assert (good.exit_code, "fit for training" in good.output) == (0, True)
        bad = runner.invoke(app, ["template", "check", str(model), "--parser", "glm"])
        assert (bad.exit_code, "would break training" in bad.output) == (1, True)


def test_pictures_of_a_model_that_sees_are_tried(tmp_path):
    from agentfly_lib.models.tiny_vision import build_vision_tokenizer, image_processor, vision_network_config

    words = build_vision_tokenizer()
    words.save_pretrained(tmp_path)
    vision_network_config(words).save_pretrained(tmp_path)
    image_processor().save_pretrained(tmp_path)

    report = check_template(ChatFormat.from_pretrained(tmp_path))
    for where in ("pictures in a question", "pictures in a tool result"):
        assert found(report, where) == (Level.OK, "one of 64 x 64 pixels has 16 tokens")

    blind = tmp_path / "chat_template.jinja"
    blind.write_text(blind.read_text().replace("part.type == 'image'", "false"))
    level, text = found(check_template(ChatFormat.from_pretrained(tmp_path)), "pictures in a question")
    assert level is Level.NOTE
    assert "cannot be shown" in text
