"""Every family: its shipped template against its published format, and token-in token-out over random conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentfly_lib.chat import ChatFormat, get_parser, parser_names
from agentfly_lib.chat.families import FAMILIES, detect_family, detect_parser, get_family
from agentfly_lib.chat.templates import shipped_template
from agentfly_lib.errors import ModelError
from agentfly_lib.rollout.compaction import with_request, with_summary

SHIPPED = tuple(name for name in FAMILIES if name != "qwen3-coder")
SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PARAMETERS = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": "What to work out."}, "n": {"type": "integer"}},
    "required": ["expression"],
}
TOOLS = [
    {"type": "function", "function": {"name": "calculator", "description": "Evaluates.", "parameters": PARAMETERS}}
]
USER = {"role": "user", "content": "What is 2 + 3?"}

Arguments = Mapping[str, Any]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def hermes(arguments: Arguments, _: str) -> str:
    return f'<tool_call>\n{{"name": "calculator", "arguments": {dumps(arguments)}}}\n</tool_call>'


def glm(arguments: Arguments, _: str) -> str:
    pairs = "".join(
        f"\n<arg_key>{key}</arg_key>\n<arg_value>{value if isinstance(value, str) else dumps(value)}</arg_value>"
        for key, value in arguments.items()
    )
    return f"\n<think></think>\n<tool_call>calculator{pairs}\n</tool_call>"


def deepseek(arguments: Arguments, _: str) -> str:
    call = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>"
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"


CALLS: Mapping[str, Callable[[Arguments, str], str]] = {
    "hermes": hermes,
    "glm": glm,
    "llama-json": lambda arguments, _: f'{{"name": "calculator", "parameters": {dumps(arguments)}}}',
    "pythonic": lambda arguments, _: f"[calculator({', '.join(f'{k}={dumps(v)}' for k, v in arguments.items())})]",
    "mistral": lambda arguments, call_id: (
        f'[TOOL_CALLS][{{"name": "calculator", "arguments": {dumps(arguments)}, "id": "{call_id}"}}]'
    ),
    "deepseek": deepseek,
    "harmony": lambda arguments, _: (
        f"<|channel|>commentary to=functions.calculator <|constrain|>json<|message|>{dumps(arguments)}"
    ),
}
"""A call as a policy of each format samples it, without the token that ends the turn."""
ANSWERS = {"glm": "\n<think></think>\n{}", "harmony": "<|channel|>final<|message|>{}"}
"""A final answer, where it is more than its text."""
ENDS = {"glm": ("<|observation|>", "<|user|>"), "harmony": ("<|call|>", "<|return|>")}
"""Which token ends a turn with a call, and one with an answer, where these differ."""


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calling(arguments: Arguments, call_id: str) -> dict[str, Any]:
    function = {"name": "calculator", "arguments": dict(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(text: str, call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "calculator", "content": text}


def sample(chat: ChatFormat, text: str, *, call: bool) -> list[int]:
    ends = ENDS.get(chat.parser)
    end = chat.encode(ends[0 if call else 1]) if ends else list(chat.stop_token_ids[:1])
    return [*chat.encode(text), *end]


def rendered(chat: ChatFormat, messages: list[dict[str, Any]]) -> list[int]:
    """What the template itself writes, from messages with structured calls."""
    return list(
        chat.tokenizer.apply_chat_template(
            messages, tools=TOOLS, chat_template=chat.template, add_generation_prompt=True, return_dict=False
        )
    )


texts = st.text(st.characters(exclude_categories=("Cs", "C"), exclude_characters="<>[]{}|｜"), min_size=1, max_size=20)
texts = texts.map(str.strip).filter(bool)
turns = st.lists(
    st.tuples(
        st.fixed_dictionaries({"expression": texts}, optional={"n": st.integers(-9, 99)}),
        texts,
        st.none() | st.tuples(texts, texts),
    ),
    min_size=1,
    max_size=3,
)
"""Arguments of a call, its result, and perhaps an answer with the user's next question."""


@pytest.mark.parametrize("family", SHIPPED)
class TestEveryFamily:
    def test_the_first_prompt_is_the_template_applied(self, family, shipped_format):
        chat = shipped_format(family)
        assert chat.prompt_ids([USER], TOOLS) == rendered(chat, [USER])

    def test_its_own_template_gives_the_same_and_is_recognised(
        self, family, family_tokenizer, tmp_path, shipped_format
    ):
        family_tokenizer(family).save_pretrained(tmp_path)
        (tmp_path / "chat_template.jinja").write_text(shipped_template(family))
        chat = ChatFormat.from_pretrained(tmp_path)
        known = FAMILIES["qwen2.5" if family == "chatml" else family]  # ours is what Qwen2.5 writes
        assert (chat.template, chat.family, chat.parser) == (None, known, known.parser)
        assert chat.prompt_ids([USER], TOOLS) == shipped_format(family).prompt_ids([USER], TOOLS)
        assert chat.stop_token_ids == shipped_format(family).stop_token_ids

    def test_tools_and_system_message_are_in_the_prompt(self, family, shipped_format):
        chat = shipped_format(family)
        text = chat.decode(chat.prompt_ids([{"role": "system", "content": "Be brief."}, USER], TOOLS))
        for part in ("Be brief.", "calculator", "Evaluates.", "expression", "What is 2 + 3?"):
            assert text.count(part) >= 1

    def test_turns_end_with_the_declared_tokens(self, family, shipped_format):
        chat = shipped_format(family)
        ends = chat.tokenizer.convert_ids_to_tokens(list(chat.stop_token_ids))
        declared = FAMILIES[family].stop_tokens
        assert [token for token in ends if token in declared] == list(declared)
        assert set(ends) <= {*declared, chat.tokenizer.eos_token}

    @SETTINGS
    @given(turns=turns, question=texts)
    def test_segment_plus_bridge_is_the_templates_own_prompt(self, family, shipped_format, turns, question):
        """What was sampled goes in as text; the template's rendering of structured calls is the independent value."""
        chat = shipped_format(family)
        parser = get_parser(chat.parser, TOOLS)
        call_id = parser.call_id(0)
        said = [{"role": "user", "content": question}]
        history, segment = list(said), chat.prompt_ids(said, TOOLS)

        def exchange(text: str, structured: dict, back: dict, *, call: bool) -> None:
            nonlocal history, said, segment
            sampled = sample(chat, text, call=call)
            mask = [0] * len(segment) + [1] * len(sampled)
            reply = chat.decode(sampled)
            thinks = family == "deepseek-r1" and chat.decode(segment).endswith("<think>\n")
            bridge = chat.bridge(history, reply, sampled, [back], TOOLS)
            history += [assistant(reply), back]
            said += [structured, back]
            moved = not call and (family == "mistral" or family == "gpt-oss")
            assert bridge.rewritten is (thinks or moved)
            if bridge.rewritten:
                segment = bridge.ids
            else:
                segment = segment + sampled + bridge.ids
                mask += [0] * len(bridge.ids)
                assert [t for t, m in zip(segment, mask, strict=True) if m][-len(sampled) :] == sampled
            assert segment == rendered(chat, said)

        for arguments, observation, follow_up in turns:
            text = CALLS[chat.parser](arguments, call_id)
            (found,) = parser.parse(text).calls
            assert (found.name, found.arguments, found.id) == ("calculator", arguments, call_id)
            exchange(text, calling(arguments, call_id), result(observation, call_id), call=True)
            if follow_up:
                answer = ANSWERS.get(chat.parser, "{}").format(follow_up[0])
                back = {"role": "user", "content": follow_up[1]}
                exchange(answer, assistant(follow_up[0]), back, call=False)

    @SETTINGS
    @given(ids=st.lists(st.integers(0, 262), max_size=16), result_text=texts, ended=st.booleans())
    def test_whatever_was_sampled_there_is_a_next_prompt(self, family, shipped_format, ids, result_text, ended):
        """Random tokens, broken UTF-8 and control tokens included."""
        chat = shipped_format(family)
        ids = [token for token in ids if token not in chat.stop_token_ids]  # sampling stops at the first
        sampled = [*ids, chat.stop_token_ids[0]] if ended else ids
        reply = chat.decode(sampled)
        bridge = chat.bridge([USER], reply, sampled, [result(result_text, "call00000")], TOOLS)
        assert result_text in chat.decode(bridge.ids)
        if bridge.rewritten:
            assert bridge.ids == chat.prompt_ids([USER, assistant(reply), result(result_text, "call00000")], TOOLS)

    def test_a_cut_turn_is_ended_by_the_bridge(self, family, shipped_format):
        chat = shipped_format(family)
        text = ANSWERS.get(chat.parser, "{}").format("It is")
        cut = chat.bridge([USER], text, chat.encode(text), [{"role": "user", "content": "Go on"}], TOOLS)
        whole = chat.bridge([USER], text, sample(chat, text, call=False), [{"role": "user", "content": "Go on"}], TOOLS)
        if cut.rewritten:
            assert cut == whole
        else:
            assert cut.ids == [*sample(chat, "", call=False), *whole.ids]

    @pytest.mark.parametrize("role", ["user", "tool"])
    def test_control_tokens_in_texts_stay_text(self, family, role, shipped_format):
        chat = shipped_format(family)
        hostile = "a" + "".join(chat.tokenizer.all_special_tokens) + FAMILIES[family].marker + "b"
        found = []
        for content in ("ab", hostile):
            messages = [USER] if role == "tool" else [{"role": "user", "content": content}]
            if role == "tool":
                messages += [calling({"expression": "1"}, "call00000"), result(content, "call00000")]
            ids = chat.prompt_ids(messages, TOOLS)
            assert content in chat.decode(ids)
            found.append([token for token in ids if token in chat.tokenizer.added_tokens_decoder])
        assert found[0] == found[1]


HAND_WRITTEN = {
    "qwen2.5": (
        "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n<tool_call>\n"
        '{"name": "calculator", "arguments": {"expression": "2+3"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ),
    "phi-4": (
        "<|im_start|>user<|im_sep|>2+3?<|im_end|><|im_start|>assistant<|im_sep|><tool_call>\n"
        '{"name": "calculator", "arguments": {"expression": "2+3"}}\n</tool_call><|im_end|>'
        "<|im_start|>user<|im_sep|><tool_response>\n5\n</tool_response><|im_end|><|im_start|>assistant<|im_sep|>"
    ),
    "llama-3": (
        '2+3?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{"name": "calculator", "parameters": '
        '{"expression": "2+3"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n5<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral": (
        '[/AVAILABLE_TOOLS][INST]2+3?[/INST][TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "2+3"}, '
        '"id": "call00000"}]</s>[TOOL_RESULTS]call00000[TOOL_CONTENT]5[/TOOL_RESULTS]'
    ),
    "gemma": (
        '2+3?<end_of_turn>\n<start_of_turn>model\n[calculator(expression="2+3")]<end_of_turn>\n<start_of_turn>user\n'
        "```tool_output\n5\n```<end_of_turn>\n<start_of_turn>model\n"
    ),
    "glm-4": (
        "<|user|>\n2+3?<|assistant|>\n<think></think>\n<tool_call>calculator\n<arg_key>expression</arg_key>\n"
        "<arg_value>2+3</arg_value>\n</tool_call><|observation|>\n<tool_response>\n5\n</tool_response><|assistant|>"
    ),
    "deepseek-r1": (
        "<｜User｜>2+3?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>calculator\n"
        '```json\n{"expression": "2+3"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>5<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    ),
    "gpt-oss": (
        "<|start|>user<|message|>2+3?<|end|><|start|>assistant<|channel|>commentary to=functions.calculator "
        '<|constrain|>json<|message|>{"expression": "2+3"}<|call|><|start|>functions.calculator to=assistant'
        "<|channel|>commentary<|message|>5<|end|><|start|>assistant"
    ),
}
HAND_WRITTEN |= dict.fromkeys(("qwen3", "qwen2.5-vl", "qwen3-vl", "chatml"), HAND_WRITTEN["qwen2.5"])


@pytest.mark.parametrize("family", SHIPPED)
def test_a_tool_conversation_as_published(family, shipped_format):
    chat = shipped_format(family)
    messages = [
        {"role": "user", "content": "2+3?"},
        calling({"expression": "2+3"}, "call00000"),
        result("5", "call00000"),
    ]
    text = chat.decode(rendered(chat, messages), end_of_turn=True)
    assert text.endswith(HAND_WRITTEN[family])


class TestThoughts:
    """Families whose templates leave earlier thoughts out begin a new segment where they do, and only there."""

    CALL = hermes({"expression": "2+3"}, "")
    QWEN = f"<think>\nhm\n</think>\n\n{CALL}"

    def thinking(self, chat: ChatFormat, reply: str, back: dict, *, call: bool):
        return chat.bridge([USER], reply, sample(chat, reply, call=call), [back], TOOLS)

    def test_qwen3_keeps_them_until_the_next_question(self, shipped_format):
        chat = shipped_format("qwen3")
        assert not self.thinking(chat, self.QWEN, result("5", "call-0"), call=True).rewritten
        bridge = self.thinking(chat, self.QWEN, {"role": "user", "content": "And?"}, call=True)
        assert bridge.rewritten
        assert "hm" not in chat.decode(bridge.ids)
        assert self.CALL in chat.decode(bridge.ids)

    def test_qwen3_without_thinking_answers_an_empty_thought(self, shipped_format):
        chat = shipped_format("qwen3", thinking=False)
        assert chat.decode(chat.prompt_ids([USER])).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
        assert shipped_format("qwen3", thinking=True).prompt_ids([USER]) == shipped_format("qwen3").prompt_ids([USER])
        assert chat.fingerprint != shipped_format("qwen3").fingerprint

    def test_glm(self, shipped_format):
        chat = shipped_format("glm-4")
        reply = glm({"expression": "2+3"}, "").replace("<think>", "<think>hm")
        assert not self.thinking(chat, reply, result("5", "call-0"), call=True).rewritten
        assert self.thinking(chat, reply, {"role": "user", "content": "And?"}, call=False).rewritten
        assert chat.decode(shipped_format("glm-4", thinking=False).prompt_ids([USER])).endswith("<think></think>")

    def test_gpt_oss(self, shipped_format):
        chat = shipped_format("gpt-oss")
        thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        reply = thought + CALLS["harmony"]({"expression": "2+3"}, "")
        assert not self.thinking(chat, reply, result("5", "call-0"), call=True).rewritten
        answer = thought + "<|channel|>final<|message|>5"
        bridge = self.thinking(chat, answer, {"role": "user", "content": "And?"}, call=False)
        assert bridge.rewritten
        assert "hm" not in chat.decode(bridge.ids)

    def test_deepseek_leaves_every_thought_out(self, shipped_format):
        chat = shipped_format("deepseek-r1")
        reply = "hm\n</think>\n\n" + deepseek({"expression": "2+3"}, "")
        bridge = self.thinking(chat, reply, result("5", "call-0"), call=True)
        assert bridge.rewritten
        text = chat.decode(bridge.ids, end_of_turn=True)
        assert text.endswith(HAND_WRITTEN["deepseek-r1"].replace("2+3?", USER["content"]))
        # The call is written with its control tokens again, not as text that looks like them.
        assert chat.encode("<｜tool▁calls▁begin｜>")[0] in bridge.ids[-120:]

    def test_families_that_rewrite_say_so(self):
        assert {name for name, family in FAMILIES.items() if family.rewrites_history} == {
            "qwen3",
            "glm-4",
            "gpt-oss",
            "deepseek-r1",
            "mistral",
        }


class TestOwnTemplatesThatAreStrict:
    """What models' own templates demand, which text in place of calls cannot give."""

    ALTERNATING = """{{- bos_token }}{%- set ns = namespace(n=0) %}{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
    {%- if (m.role == 'user') != (ns.n % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
    {%- set ns.n = ns.n + 1 %}{%- endif %}
    {%- if m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}
    {%- elif m.tool_calls %}{{- '[TOOL_CALLS]' + m.tool_calls | map(attribute='function') | list | tojson + eos_token }}
    {%- elif m.role == 'assistant' %}{{- m.content + eos_token }}
    {%- elif m.tool_call_id | length != 9 %}{{- raise_exception('ids have nine characters') }}
    {%- else %}{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{%- endif %}{%- endfor %}"""
    TEXT_ARGUMENTS = """{{- bos_token }}{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<｜User｜>' + m.content }}
    {%- elif m.role == 'assistant' and m.content is none %}{%- for c in m.tool_calls %}
    {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' + c.function.name + c.function.arguments + eos_token }}{%- endfor %}
    {%- elif m.role == 'assistant' %}{{- '<｜Assistant｜>' + m.content + eos_token }}
    {%- else %}{{- '<｜tool▁outputs▁begin｜>' + m.content }}{%- endif %}{%- endfor %}
    {%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"""

    def chat(self, family: str, source: str, family_tokenizer, tmp_path) -> ChatFormat:
        path = tmp_path / "own.jinja"
        path.write_text(source)
        return ChatFormat.from_tokenizer(family_tokenizer(family), template=str(path))

    def test_roles_that_alternate_over_many_turns(self, family_tokenizer, tmp_path):
        chat = self.chat("mistral", self.ALTERNATING, family_tokenizer, tmp_path)
        history = [USER]
        for turn in range(3):
            reply = CALLS["mistral"]({"expression": str(turn)}, "call00000")
            back = result(str(turn), "call00000")
            bridge = chat.bridge(history, reply, sample(chat, reply, call=True), [back])
            assert chat.decode(bridge.ids) == f"[TOOL_RESULTS]{turn}[/TOOL_RESULTS]"
            history += [assistant(reply), back]

    def test_a_summary_is_asked_for_and_gone_on_from(self, family_tokenizer, tmp_path):
        chat = self.chat("mistral", self.ALTERNATING, family_tokenizer, tmp_path)
        reply = CALLS["mistral"]({"expression": "2"}, "call00000")
        asked = with_request([result("2", "call00000")], "Sum up.")
        bridge = chat.bridge([USER], reply, sample(chat, reply, call=True), asked)
        assert chat.decode(bridge.ids) == "[TOOL_RESULTS]2\n\nSum up.[/TOOL_RESULTS]"
        assert chat.decode(chat.prompt_ids(with_summary([USER], "It is 2."))).endswith("It is 2.[/INST]")

    def test_arguments_as_text(self, family_tokenizer, tmp_path):
        chat = self.chat("deepseek-r1", self.TEXT_ARGUMENTS, family_tokenizer, tmp_path)
        reply = deepseek({"expression": "2+3"}, "")
        bridge = chat.bridge([USER], reply, sample(chat, reply, call=True), [result("5", "call-0")])
        assert chat.decode(bridge.ids) == "<｜tool▁outputs▁begin｜>5<｜Assistant｜>"

    def test_a_result_that_answers_no_call_is_said_by_the_user(self, family_tokenizer, tmp_path):
        """As of an agent that reads calls of a format of its own."""
        chat = self.chat("mistral", self.ALTERNATING, family_tokenizer, tmp_path)
        bridge = chat.bridge([USER], "Action: add", sample(chat, "Action: add", call=True), [result("5", "x")])
        assert chat.decode(bridge.ids) == "[INST]5[/INST]"

    def test_a_call_that_could_not_be_read_is_answered_too(self, shipped_format):
        for family in ("mistral", "gpt-oss"):
            chat = shipped_format(family)
            reply = CALLS[chat.parser]({}, "call00000").replace("{}", "{bad")
            bridge = chat.bridge([USER], reply, sample(chat, reply, call=True), [result("Error", "call00000")], TOOLS)
            assert "Error" in chat.decode(bridge.ids)
            assert not bridge.rewritten


class TestEndsOfTurns:
    def test_another_end_of_the_family_is_not_doubled(self, shipped_format):
        chat = shipped_format("llama-3")
        reply = CALLS["llama-json"]({"expression": "2+3"}, "")
        sampled = [*chat.encode(reply), *chat.encode("<|eom_id|>")]
        bridge = chat.bridge([USER], reply, sampled, [result("5", "call-0")], TOOLS)
        assert chat.decode(bridge.ids).startswith("<|start_header_id|>ipython")

    def test_a_header_that_was_sampled_is_not_repeated(self, shipped_format):
        chat = shipped_format("glm-4")
        reply = glm({"expression": "2+3"}, "")
        bridge = chat.bridge([USER], reply, sample(chat, reply, call=True), [result("5", "call-0")], TOOLS)
        assert chat.decode(bridge.ids) == "\n<tool_response>\n5\n</tool_response><|assistant|>"


class TestNames:
    def test_aliases_and_nearest_names(self):
        assert get_family("llama-3.2") is FAMILIES["llama-3"]
        with pytest.raises(ModelError, match=r"did you mean 'gpt-oss'"):
            get_family("gptoss")

    def test_every_family_has_a_parser(self):
        assert {family.parser for family in FAMILIES.values()} <= set(parser_names())

    def test_a_vocabulary_without_the_tokens_is_refused_by_name(self, family_tokenizer):
        with pytest.raises(ModelError, match=r"vocabulary.*<\|start_header_id\|>"):
            ChatFormat.from_tokenizer(family_tokenizer("qwen3"), template="llama-3")

    def test_a_family_without_a_shipped_template(self, family_tokenizer):
        with pytest.raises(ModelError, match="there is no built-in template for qwen3-coder"):
            ChatFormat.from_tokenizer(family_tokenizer("qwen3"), template="qwen3-coder")

    def test_shipped_in_place_of_the_models_own(self, tokenizer_of):
        chat = ChatFormat.from_tokenizer(tokenizer_of("bos"), template="shipped:chatml")
        assert chat.template == shipped_template("chatml")

    @pytest.mark.parametrize(
        ("source", "family", "parser"),
        [
            ("<|im_start|> <tool_call>", "qwen2.5", "hermes"),
            ("<|im_start|> <tool_call> <function=", "qwen3-coder", "qwen3-coder"),
            ("<|start_header_id|> [func_name1(", "llama-3", "pythonic"),
            ("<|start_header_id|> <tool_call>", "llama-3", "hermes"),
            ("[INST] [TOOL_CALLS]", "mistral", "mistral"),
            ("[INST]", "mistral", "mistral"),
            ("something else", None, "hermes"),
        ],
    )
    def test_detection(self, source, family, parser):
        found = detect_family(source)
        assert (found.name if found else None) == family
        assert detect_parser(source, found) == parser
