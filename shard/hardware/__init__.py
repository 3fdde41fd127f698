"""The machine that a shard runs on: device, number type, memory, control groups, and a cache of what was measured at
startup.
"""
