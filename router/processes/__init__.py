"""Child processes that can be killed and replaced, and the memory and network of a process."""
