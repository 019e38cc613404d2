"""Scripts that run in a peer's environment, where there is no antiphon: they import none of it."""
