"""Cleaning in the pipeline that makes a store: what goes, what is counted, and what does not depend on the workers."""
