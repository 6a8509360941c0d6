"""LoRA: small matrices train in place of the weights."""
