"""A policy that is scripted token by token, in the weights themselves: every engine that runs it samples the same.

The network is an ordinary small Qwen2 that computes everything it always computes; only its attention and MLP outputs
are multiplied by zero, so that the next token depends on the last one alone. Every turn is equally long: words, one
token that stands for a whole tool call, the end of the turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["CALL", "TOOL", "TURN_TOKENS", "make_scripted_model"]

TOOL = "wait"
CALL = f'<tool_call>\n{{"name": "{TOOL}", "arguments": {{"kind": 1}}}}\n</tool_call>'
TURN_TOKENS = 78
_SHARPNESS = 40.0


def make_scripted_model(
    directory: Path,
    *,
    chat_template: str | None = None,
    turn_tokens: int = TURN_TOKENS,
    network: Mapping[str, int] | None = None,
    dtype: str = "float32",
) -> Path:
    """Writes a model directory (safetensors, tokenizer, chat template) and returns it.

    network: keys of `Qwen2Config` that make it another size than the demo's model.
    """
    import torch
    from transformers import AddedToken, AutoTokenizer, Qwen2ForCausalLM

    from agentfly_lib.configs import TinyModelConfig
    from agentfly_lib.models.tiny import ensure_tiny, network_config

    tokenizer = AutoTokenizer.from_pretrained(ensure_tiny(TinyModelConfig()).path)
    words = [f" word{number}" for number in range(turn_tokens - 2)]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*words, CALL)])
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    script = [tokenizer.convert_tokens_to_ids(text) for text in (*words, CALL, "<|im_end|>")]

    config = network_config(tokenizer)
    config.update(dict(network or {}))
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        directions = torch.nn.functional.normalize(torch.randn(len(script) + 1, config.hidden_size), dim=-1)
        embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
        embedding.copy_(directions[-1].expand_as(embedding))  # after whatever is no part of the script, it begins
        head.zero_()
        head[script[0]] = directions[-1] * _SHARPNESS
        for place, token in enumerate(script[:-1]):
            embedding[token] = directions[place]
            head[script[place + 1]] = directions[place] * _SHARPNESS
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
