"""Models whose forward is one graph: traced by TorchScript, or compiled by OpenVINO."""
