"""
Runs in a vLLM server: weights come as a file in the format of safetensors, which server and trainer see.

    python -m vllm.entrypoints.openai.api_server ... \
        --worker-extension-cls ding_grpo_weights.Worker --weight-transfer-config '{"backend": "file"}'
"""
from dataclasses import dataclass
from typing import Dict

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class FileInit(WeightTransferInitInfo):
    """Nothing is to be connected."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    path: str = ''


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        with safe_open(update_info.path, 'pt') as f:
            self.model.load_weights((name, f.get_tensor(name)) for name in f.keys())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, 'lm_head', None)
        if hasattr(head, 'quant_method'):  # vLLM 0.32 on a CPU keeps a packed copy of a tied output matrix, the old one
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        pass


class Worker:
    """Extends each of the server's workers. That it is imported there registers the transfer."""

    def ding_grpo(self) -> Dict[str, str]:
        return dict(dtype=str(self.model_runner.model_config.dtype).replace('torch.', ''))


WeightTransferEngineFactory.register_engine('file', FileTransfer)
