"""What computes with weights."""
