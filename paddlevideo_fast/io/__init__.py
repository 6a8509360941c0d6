"""Files and stores: paths, locks, copies of what lies elsewhere."""
