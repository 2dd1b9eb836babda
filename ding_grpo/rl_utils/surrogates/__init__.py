"""
Surrogates: the objective of each token, to be maximised. Each paper has a file, which gives the formula, the reference
and how it departs from them, and registers the function under its name.
"""
from .registry import SURROGATES, Limits, Surrogate, Traits, check_surrogate_options, register_surrogate, \
    surrogate_arguments, surrogate_function, surrogate_traits
from .clip import clip_surrogate
from .cispo import cispo_surrogate
from .sapo import sapo_surrogate
from .dppo import dppo_kl_surrogate, dppo_tv_surrogate
from .gpg import gpg_surrogate
from .dro import dro_surrogate
from .covariance import clip_cov_surrogate, kl_cov_surrogate
from .cpgd import cpgd_surrogate
from .m2po import m2po_surrogate
from .whole_rows.geo_mean import geo_mean_surrogate
from .whole_rows.vespo import vespo_surrogate
from .whole_rows.fipo import fipo_surrogate
from .whole_rows.flash_reinforce import flash_reinforce_surrogate
from .whole_rows.real import real_surrogate
