from .branching import Branching, Node, Place, Point, Tree, TreePlan
from .early_stop import EarlyStop
from .generate import Rollout, generate
from .kept_sets import KeptSets
from .sampling import AllowedTokens, Sampling, draw
