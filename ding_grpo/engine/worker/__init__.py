"""Put on the ``PYTHONPATH`` of a vLLM server; nothing of this project is imported there."""
