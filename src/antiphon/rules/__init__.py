"""Token-level acceptance rules: base (exact or not), then rescue, then veto; one file each."""
