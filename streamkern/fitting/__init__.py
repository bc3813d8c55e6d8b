"""A fit: its recipe, its checks, and the order of its parts."""
