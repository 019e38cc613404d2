"""Token-level acceptance rules."""
