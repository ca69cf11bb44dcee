"""Programs that run in the environments of peers, which `make peers` creates; nothing of theirs is imported here."""
