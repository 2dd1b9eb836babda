from setuptools import find_packages, setup

setup(
    name='ding-grpo',
    version='0.1.0',
    description='GRPO for DI-engine: critic-free reinforcement learning, language models included',
    long_description=open('README.md', encoding='utf-8').read(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10,<3.12',
    packages=find_packages(include=['ding_common', 'ding_grpo*', 'dizoo_llm*']),
    install_requires=[
        'DI-engine>=0.5.3',
        'torch>=2.6',
        'transformers>=5.20',
        'tokenizers',
        'gymnasium',
        'easydict',
        'numpy',
        'click',
        'matplotlib',
        'tabulate',
    ],
    extras_require={
        'box2d': ['gymnasium[box2d]'],
        'lora': ['peft>=0.17'],
        'math': ['math-verify'],
        'parquet': ['pyarrow<22'],  # later ones want numpy 2, which DI-engine 0.5.3 excludes
        'reasoning-gym': ['reasoning-gym'],
        'sft': ['accelerate'],
        'test': [
            'pytest>=7', 'pytest-xdist', 'hypothesis', 'yapf', 'flake8', 'tensorboard', 'peft>=0.17', 'math-verify',
            'pyarrow<22', 'reasoning-gym', 'accelerate'
        ],
    },
    entry_points={'ding_grpo.plugins': ['dizoo_llm = dizoo_llm']},
)
