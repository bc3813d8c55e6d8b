"""The contract of stored rows, and what all formats share."""
