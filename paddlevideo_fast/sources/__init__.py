"""Where clips may come from: a folder for each."""
