"""CoSpec's arbiter: what it looks at, the policy, mining of branches, and training."""
