"""
Compare configs: ``python -m ding_grpo.compare CONFIG ... --seeds 0,1,2`` runs several configs (paths or names of
shipped configs) on several seeds, and writes one table and one picture.
"""
from .command import main
