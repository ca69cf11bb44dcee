"""Typed configs of a run, and how they are read. Nothing here imports torch, ray, vllm or deepspeed."""

from agentfly_lib.configs.agent import AgentConfig, RewardConfig
from agentfly_lib.configs.algorithm import (
    AdvantageConfig,
    AlgorithmConfig,
    ClipConfig,
    CorrectionConfig,
    GrpoAdvantageConfig,
    KlConfig,
    NoCorrectionConfig,
    OptimConfig,
    TisTokenConfig,
)
from agentfly_lib.configs.base import Config
from agentfly_lib.configs.data import (
    ArithmeticDataConfig,
    DataConfig,
    FilesDataConfig,
    Gsm8kDataConfig,
    HubDataConfig,
)
from agentfly_lib.configs.inference import InferenceConfig, SamplingConfig
from agentfly_lib.configs.load import config_toml, differing_keys, load_config, parse_overrides
from agentfly_lib.configs.model import ModelConfig, PretrainedModelConfig, TinyModelConfig
from agentfly_lib.configs.run import (
    CheckpointConfig,
    EvaluationConfig,
    LearnerConfig,
    RayConfig,
    RolloutConfig,
    RunConfig,
    RunSection,
    TrackingConfig,
)

__all__ = [
    "AdvantageConfig",
    "AgentConfig",
    "AlgorithmConfig",
    "ArithmeticDataConfig",
    "CheckpointConfig",
    "ClipConfig",
    "Config",
    "CorrectionConfig",
    "DataConfig",
    "EvaluationConfig",
    "FilesDataConfig",
    "GrpoAdvantageConfig",
    "Gsm8kDataConfig",
    "HubDataConfig",
    "InferenceConfig",
    "KlConfig",
    "LearnerConfig",
    "ModelConfig",
    "NoCorrectionConfig",
    "OptimConfig",
    "PretrainedModelConfig",
    "RayConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "SamplingConfig",
    "TinyModelConfig",
    "TisTokenConfig",
    "TrackingConfig",
    "config_toml",
    "differing_keys",
    "load_config",
    "parse_overrides",
]
