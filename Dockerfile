# Trains on a CPU. docker build -t ding-grpo .; docs/get_started/installation.md says how to run it.
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# First, as it rarely changes: PyPI's build of torch comes with CUDA, 2.7 GB in all.
RUN pip install 'torch>=2.6,<2.13' --index-url https://download.pytorch.org/whl/cpu
COPY . /source
RUN pip install /source

RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
ENTRYPOINT ["python", "-m", "ding_grpo"]
CMD ["-m", "serial_onpolicy", "-c", "think_answer_grpo", "-s", "0"]
