"""What others need of a run: a model card, a config without paths of this machine, an upload."""
