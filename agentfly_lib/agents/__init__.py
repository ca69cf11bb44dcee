"""Agents: a model with its prompt, tools, reward and limits, one kind per file. Loads no engine."""

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.auto import AutoAgent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.agents.code import CodeAgent
from agentfly_lib.agents.gui import GUIAgent
from agentfly_lib.agents.gui_tools import GuiAction, gui_tools
from agentfly_lib.agents.hf import HFAgent
from agentfly_lib.agents.image import ImageAgent
from agentfly_lib.agents.react import ReActAgent
from agentfly_lib.agents.result import RunResult
from agentfly_lib.agents.search import SearchAgent
from agentfly_lib.agents.text import TextAgent

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
