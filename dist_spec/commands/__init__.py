"""What the commands of `dist-spec` do, one file each. Nothing heavy is imported before a command needs it."""
