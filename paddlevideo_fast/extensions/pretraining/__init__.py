"""VideoMAE: a network learns from videos without labels."""
