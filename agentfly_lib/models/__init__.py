"""Model directories: any Hugging Face causal language model, and the small one that is made on this machine."""

__all__: list[str] = []
