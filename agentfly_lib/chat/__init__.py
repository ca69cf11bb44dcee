"""Messages to token ids and back: templates, bridges, tool-call parsers. The only place that calls a tokenizer."""

from agentfly_lib.chat.bridge import Bridge
from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall
from agentfly_lib.chat.format import ChatFormat
from agentfly_lib.chat.hermes import HermesParser
from agentfly_lib.chat.stream import StreamDecoder

__all__ = ["Bridge", "ChatFormat", "HermesParser", "MalformedCall", "ParsedReply", "StreamDecoder", "ToolCall"]
