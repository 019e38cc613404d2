"""Language models behind one small protocol, over trees of tokens."""
