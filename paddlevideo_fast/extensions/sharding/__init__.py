"""An optimizer whose state several processes share."""
