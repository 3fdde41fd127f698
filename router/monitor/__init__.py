"""Live view of the batch, the queue and the cache, for `/v1/engine`, the page in the browser and `weft top`."""
