"""Laws of the loop on toy models: exactness, independence of neighbours, seeds."""
