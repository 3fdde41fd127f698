"""The gRPC server of a shard: service, order of messages, health."""
