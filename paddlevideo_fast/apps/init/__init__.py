"""From a folder of videos to lists and a config."""
