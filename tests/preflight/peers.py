"""
Let the parsers of TRL and verl read what a plan gives, in an environment that has both, and record the names that they
have in ``peers.json``: ``python tests/preflight/peers.py TRL.json VERL.txt``.
"""
import dataclasses
import importlib.util
import json
import os
import sys


def of_trl(path):
    """Names of ``GRPOConfig``, which accepts these values and makes an update of one batch."""
    from trl import GRPOConfig
    with open(path, encoding='utf-8') as f:
        given = json.load(f)
    args = GRPOConfig(output_dir='out', use_cpu=True, bf16=False, **given)
    assert all(getattr(args, name) == value for name, value in given.items())
    assert args.steps_per_generation == given['gradient_accumulation_steps']
    assert args.generation_batch_size == given['num_generations'] * given['gradient_accumulation_steps']
    return sorted(field.name for field in dataclasses.fields(GRPOConfig))


def of_verl(path):
    """Names of verl's command line, which accepts these arguments."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    with open(path, encoding='utf-8') as f:
        given = f.read().split()
    folder = importlib.util.find_spec('verl').submodule_search_locations[0]  # importing it needs ray
    with initialize_config_dir(config_dir=os.path.join(folder, 'trainer', 'config'), version_base=None):
        config = compose('ppo_trainer', overrides=given)
    for name, _, value in (each.partition('=') for each in given):
        assert str(OmegaConf.select(config, name)) in (value, str(float(value)) if value[0].isdigit() else value), name
    return sorted(_names(OmegaConf.to_container(config, resolve=False), ''))


def _names(config, above):
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _names(value, f'{above}{key}.')
        else:
            yield f'{above}{key}'


if __name__ == '__main__':
    found = dict(trl=of_trl(sys.argv[1]), verl=of_verl(sys.argv[2]))
    with open(os.path.join(os.path.dirname(__file__), 'peers.json'), 'w', encoding='utf-8') as f:
        json.dump(found, f, indent=0)
        f.write('\n')
