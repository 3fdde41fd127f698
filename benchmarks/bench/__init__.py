"""`weft bench`: load on a server, its report, and benchmarks of shards without a router."""
