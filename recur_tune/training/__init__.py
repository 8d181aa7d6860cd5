"""Fine-tuning and evaluation of one model; it knows neither Ray nor MLflow."""
