"""One package or module per trainer; nothing else in Penstock imports a trainer."""
