"""What a fit costs before it runs: operations, bytes and seconds."""
