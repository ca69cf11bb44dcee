from .blocks import CallParser as CallParser
from .bridge import Bridge as Bridge
from .calls import MalformedCall as MalformedCall, ParsedReply as ParsedReply, ToolCall as ToolCall
from .format import ChatFormat as ChatFormat
from .hermes import HermesParser as HermesParser
from .images import ImageAccess as ImageAccess, Picture as Picture, load_picture as load_picture
from .parsers import get_parser as get_parser, parser_names as parser_names
from .pictures import PictureBook as PictureBook
from .stream import StreamDecoder as StreamDecoder
from .stream_parser import StreamParser as StreamParser
from .vision import Prompt as Prompt
