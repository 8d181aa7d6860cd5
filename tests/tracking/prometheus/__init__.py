"""What becomes numbers for Prometheus, and what draws them."""
