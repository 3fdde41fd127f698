"""Benchmarks of shards without a router: Prefill and Decode by batch size."""
