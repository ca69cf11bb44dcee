from .blocks import CallParser
from .bridge import Bridge
from .calls import MalformedCall, ParsedReply, ToolCall
from .format import ChatFormat
from .hermes import HermesParser
from .images import ImageAccess, Picture, load_picture
from .parsers import get_parser, parser_names
from .pictures import PictureBook
from .stream import StreamDecoder
from .stream_parser import StreamParser
from .vision import Prompt

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
