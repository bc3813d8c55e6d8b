"""Add rows to a fitted model, or subtract them."""
