"""LoRAX's dialect."""
