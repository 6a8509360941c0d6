"""Where the time of a training run goes, what would help, and what a multigrid run would cost."""
