"""One model on several hosts: the launcher of the first one leads, those of the others start shards as it says."""
