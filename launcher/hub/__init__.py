"""Models in a folder or the Hub's cache, and the download of missing files."""
