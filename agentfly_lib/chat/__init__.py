"""Messages to token ids and back: templates, bridges, tool-call parsers. The only place that calls a tokenizer."""

from agentfly_lib.chat.blocks import CallParser
from agentfly_lib.chat.bridge import Bridge
from agentfly_lib.chat.calls import MalformedCall, ParsedReply, ToolCall
from agentfly_lib.chat.format import ChatFormat
from agentfly_lib.chat.hermes import HermesParser
from agentfly_lib.chat.images import ImageAccess, Picture, load_picture
from agentfly_lib.chat.parsers import get_parser, parser_names
from agentfly_lib.chat.pictures import PictureBook
from agentfly_lib.chat.stream import StreamDecoder
from agentfly_lib.chat.stream_parser import StreamParser
from agentfly_lib.chat.vision import Prompt

__all__ = [
    "Bridge",
    "CallParser",
    "ChatFormat",
    "HermesParser",
    "ImageAccess",
    "MalformedCall",
    "ParsedReply",
    "Picture",
    "PictureBook",
    "Prompt",
    "StreamDecoder",
    "StreamParser",
    "ToolCall",
    "get_parser",
    "load_picture",
    "parser_names",
]
