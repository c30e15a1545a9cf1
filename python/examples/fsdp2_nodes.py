"""FSDP2 over several nodes, each with a deltawire-sender: on each of two nodes

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint NODE:29400 fsdp2_nodes.py
"""

import os

import deltawire
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")  # "nccl" on GPUs
rank, world = dist.get_rank(), dist.get_world_size()
local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(1001, 4003), torch.nn.Linear(4003, 1001)).bfloat16()
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))

weights = deltawire.WeightManager(
    os.environ.get("DELTAWIRE_ENDPOINT", "/dev/shm/deltawire"), model="policy",
    node_ranks=range(rank - local, rank - local + here))  # the ranks of this node
for step in range(1, 4):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.01)  # stands for the optimizer's step
    weights.offload_fsdp(model, step)
    done = weights.wait_published(step)
    if local == 0:
        print(f"version {done.version}: {done.delta_bytes} bytes from the node of rank {rank}")
dist.destroy_process_group()
