"""What happens to a trained network: weights of other toolkits, export, prediction."""
