"""Hiera: a pyramid of plain encoder blocks over mask units."""
