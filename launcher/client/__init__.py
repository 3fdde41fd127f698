"""HTTP clients of a running server: `weft chat` and `weft adapters`."""
