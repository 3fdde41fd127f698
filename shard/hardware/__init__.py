"""The machine that a shard runs on: device, number type, memory, control groups, cache of startup measurements."""
