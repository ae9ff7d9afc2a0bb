"""The operations in a network that two processes train together: DistributedDataParallel, on the CPU and on a GPU."""

import pytest
import torch

from tests.cuda_ext import data_parallel

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")


@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
def test_two_processes_share_the_mean_of_their_gradients(device, tmp_path):
    torch.multiprocessing.spawn(
        data_parallel.train_a_step, (device, str(tmp_path)), nprocs=data_parallel.PROCESSES, join=True
    )

    alone = []
    for half in range(data_parallel.PROCESSES):
        network, images, lengths = data_parallel.made(torch.device(device))
        alone.append(
            data_parallel.gradients(network, images[half * 4 : half * 4 + 4], lengths[half * 4 : half * 4 + 4])
        )
    assert alone[0].keys() == dict(network.named_parameters()).keys()
    for rank in range(data_parallel.PROCESSES):
        gradients = torch.load(tmp_path / f"{rank}.pt")
        for name, gradient in gradients.items():
            assert not torch.equal(alone[0][name], alone[1][name]), name
            torch.testing.assert_close(gradient, (alone[0][name] + alone[1][name]) / 2, rtol=1e-4, atol=1e-6)
