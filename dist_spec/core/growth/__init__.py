"""Growth policies: which leaves of its draft tree a drafter expands, and when it may answer a question."""
