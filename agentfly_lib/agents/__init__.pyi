from .agent import Agent as Agent
from .auto import AutoAgent as AutoAgent
from .build import build_agent as build_agent
from .code import CodeAgent as CodeAgent
from .gui import GUIAgent as GUIAgent
from .gui_tools import GuiAction as GuiAction, gui_tools as gui_tools
from .hf import HFAgent as HFAgent
from .image import ImageAgent as ImageAgent
from .react import ReActAgent as ReActAgent
from .result import RunResult as RunResult
from .search import SearchAgent as SearchAgent
from .text import TextAgent as TextAgent
