"""The geometry of what the layers represent."""
