"""A compiled CPU engine: the tree forward as one OpenVINO graph (extra `cpu`)."""
