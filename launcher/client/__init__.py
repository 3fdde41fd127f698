"""HTTP clients of a running server: `weft chat`, `weft explain` and `weft adapters`."""
