"""VisualDL, TensorBoard, Weights & Biases and MLflow."""
