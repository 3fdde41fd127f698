"""Command line of weft: settings, supervision of the shards and the router, downloads and adapters."""
