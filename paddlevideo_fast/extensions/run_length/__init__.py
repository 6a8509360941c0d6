"""Run-length tokens: patches that repeat the patch before them are no tokens of their own."""
