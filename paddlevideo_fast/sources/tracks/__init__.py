"""What each person does: clips along a box or a track beside a video."""
