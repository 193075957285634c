"""The pure core: decisions without I/O, clocks, threads or global randomness. Time and noise are arguments."""
