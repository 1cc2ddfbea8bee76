"""Programs as plans: JSON that says what to do, and a player of a page that does it."""
