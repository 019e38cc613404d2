"""Graders: an output and a gold answer give a `Grade`; none of them crashes a run."""
