"""Other engines as contestants, each in a process and an environment of its own."""
