"""The batching study: batching policies compared on the same loads, as `weft study batching`."""
