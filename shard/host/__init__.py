"""The machine: device, number type, memory, control groups, cached probes."""
