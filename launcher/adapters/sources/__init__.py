"""Sources of adapters: the Hub, a local folder, S3 buckets."""
