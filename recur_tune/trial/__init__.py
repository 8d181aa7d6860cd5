"""One trial from its configuration to a folder on disk, and back from there to a model that can be read."""
