"""Command lines of text-generation-inference and LoRAX, translated into those of weft."""
