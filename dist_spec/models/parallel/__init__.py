"""The target's model spread over the ranks of one process group. The leader decides, followers execute; none of this knows
requests, messages or drafters."""
