"""What makes the CPU build of Paddle faster."""
