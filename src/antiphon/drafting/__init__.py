"""Who proposes: a draft model, or n-gram lookup in the text so far."""
