"""Words in their contexts."""
