"""What defines jobs. Pure. One module per suite; so far slime's, whose only source is the checkout's own workflow."""
