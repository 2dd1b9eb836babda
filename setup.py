from setuptools import find_packages, setup

# DI-engine 0.5.3 pins setuptools<=66.1.1, numpy<2 and wandb<=0.19. pip downloads the newest release of each package,
# meets a conflict, and goes back release by release: torch from 2.15 on (1.6 GB), wandb down to 0.12 (60 files). Each
# package has the bound that follows from the pins. docs/get_started/installation.md: how to install without them.
BOUNDS = [
    'torch>=2.6,<2.13',  # 2.13 needs setuptools>=77
    'numpy<2',
    'protobuf<6',  # wandb 0.19 needs it
    'scipy<1.18',  # later ones need numpy 2
    # Not imported here, but by what DI-engine needs. Later releases need numpy 2, or protobuf 6.
    'contourpy<1.4',
    'pandas<3.1',
    'tensorboard<2.21',
]

setup(
    name='ding-grpo',
    version='0.1.0',
    description='GRPO for DI-engine: critic-free reinforcement learning, language models included',
    long_description=open('README.md', encoding='utf-8').read(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10,<3.13',
    # A wheel holds the configs as well: ding_common.shipped_configs looks for them there.
    packages=[*find_packages(include=['ding_common*', 'ding_grpo*', 'dizoo_llm*']), 'ding_common.configs'],
    package_data={'ding_grpo.report': ['*.html', '*.css', '*.js']},
    package_dir={'ding_common.configs': 'config'},
    install_requires=[
        'DI-engine>=0.5.3,<0.5.4',  # beneath the patches of ding_grpo.compat
        *BOUNDS,
        'transformers>=5.20,<5.25',  # whose attention ding_grpo.model replaces
        'tokenizers',
        'gymnasium',
        'easydict',
        'click',
        'jinja2',
        'matplotlib',
        'packaging',
        'plotly>=5.20',
        'tabulate',
    ],
    extras_require={
        'agents': ['openai>=1.40', 'aiohttp>=3.9'],
        'atari': ['gymnasium[atari]', 'opencv-python-headless<4.12'],  # later ones need numpy 2
        'box2d': ['gymnasium[box2d]'],
        'datasets': ['datasets<5.1', 'pyarrow<22'],  # later ones need pyarrow 22
        # `make docs` installs these alone, without torch.
        'docs': ['mkdocs>=1.6,<2', 'mkdocs-material>=9.5', 'latex2mathml>=3.77'],
        'gguf': ['gguf>=0.10', 'accelerate'],
        'lora': ['peft>=0.17,<0.22'],
        'math': ['math-verify'],
        'minigrid': ['minigrid>=2.5'],
        'mlflow': ['mlflow'],
        'mujoco': ['gymnasium[mujoco]'],
        'openenv': ['openenv-core>=0.3', 'openai>=1.40', 'aiohttp>=3.9'],
        'parquet': ['pyarrow<22'],  # later ones need numpy 2
        'quantize': ['peft>=0.17,<0.22', 'bitsandbytes>=0.49'],
        'reasoning-gym': ['reasoning-gym'],
        'sft': ['accelerate'],
        'textarena': ['textarena'],
        'trackio': ['trackio'],
        'verifiers': ['verifiers>=0.4', 'openai', 'aiohttp>=3.9', 'uv'],  # needs numpy 2, which the pins exclude
        'video': ['moviepy>=2', 'gymnasium[classic-control]'],
        'test': [
            'pytest>=7', 'pytest-xdist', 'hypothesis', 'yapf==0.29.0', 'flake8', 'tensorboard', 'peft>=0.17,<0.22',
            'bitsandbytes>=0.49', 'math-verify', 'datasets<5.1', 'pyarrow<22', 'reasoning-gym', 'accelerate',
            'gguf>=0.10', 'textarena', 'moviepy>=2', 'gymnasium[classic-control]', 'nbclient', 'ipykernel',
            'openai>=1.40', 'aiohttp>=3.9'
        ],
    },
    entry_points={
        'console_scripts': ['ding-grpo = ding_grpo.__main__:main'],
        'ding_grpo.plugins': ['dizoo_llm = dizoo_llm'],
        'pytest11': ['ding_grpo = ding_grpo.pytest_plugin'],
    },
)
