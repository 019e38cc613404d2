"""antiphon inside other programs; each file needs an extra of its own."""
