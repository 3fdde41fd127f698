"""The gRPC client of all shards."""
