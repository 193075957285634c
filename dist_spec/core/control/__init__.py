"""What a guess, or a wait for one, is worth. Measured costs in, decisions out; no clock of its own."""
