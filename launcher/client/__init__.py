"""HTTP clients of a running server: `weft chat`, `weft explain`, `weft top` and `weft adapters`."""
