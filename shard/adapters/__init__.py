"""LoRA adapters: low-rank updates of a model's linears, applied to selected rows of a step."""
