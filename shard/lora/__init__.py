"""LoRA in a running model: targets, which rows use which adapter, and the updates added to the products."""
