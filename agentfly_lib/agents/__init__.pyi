from .agent import Agent
from .auto import AutoAgent
from .build import build_agent
from .code import CodeAgent
from .gui import GUIAgent
from .gui_tools import GuiAction, gui_tools
from .hf import HFAgent
from .image import ImageAgent
from .react import ReActAgent
from .result import RunResult
from .search import SearchAgent
from .text import TextAgent

__all__ = [
    "Agent",
    "AutoAgent",
    "CodeAgent",
    "GUIAgent",
    "GuiAction",
    "HFAgent",
    "ImageAgent",
    "ReActAgent",
    "RunResult",
    "SearchAgent",
    "TextAgent",
    "build_agent",
    "gui_tools",
]
