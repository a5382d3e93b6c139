"""Data-parallel training through NCCL: each rank learns from its share, and all must end with the same weights.

Where there are no GPUs that torch can use, the pretend trainer stands in, as in every other test here.
"""

import argparse
import os
import tempfile

from tiny_slime.launch import execute_train, write_model

NUM_GPUS = 2
STEPS = 20


def train(rank, world, seed, meeting_point):
    """One rank: a line is fitted to noisy points, gradients are averaged over the ranks by all-reduce."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=meeting_point, rank=rank, world_size=world)
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 1).cuda()
    truth = torch.randn(64, 1).cuda()
    torch.manual_seed(1000 * seed + rank)  # from here on every rank sees points of its own
    first = last = None
    for step in range(STEPS):
        points = torch.randn(256, 64).cuda()
        loss = torch.nn.functional.mse_loss(model(points), points @ truth)
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.2 * parameter.grad
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
        first, last = first or float(loss), float(loss)
        if rank == 0:
            print(f"step {step}: {{'train/loss': {last}, 'train/grad_norm': {float(norm)}}}", flush=True)
    everyones = [torch.empty_like(model.weight) for _ in range(world)]
    dist.all_gather(everyones, model.weight.detach())
    assert all(torch.equal(weights, everyones[0]) for weights in everyones), "the ranks' weights have parted"
    assert last < first / 10, f"loss went from {first} to {last} only"
    if rank == 0:
        name, version = torch.cuda.get_device_name(), ".".join(map(str, torch.cuda.nccl.version()))
        print(f"{world} rank(s) on {name}, NCCL {version}, GPUs {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)
    dist.destroy_process_group()


def usable_gpus():
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=NUM_GPUS)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        if usable_gpus() < args.ranks:
            print(f"fewer than {args.ranks} GPUs that torch can use: pretending", flush=True)
            execute_train(write_model(root, "Tiny-NCCL"), args.ranks, "--num-rollout", "2")
            return
        import torch.multiprocessing

        meeting_point = f"file://{root}/meeting-point"
        torch.multiprocessing.spawn(train, (args.ranks, args.seed, meeting_point), nprocs=args.ranks)


if __name__ == "__main__":
    main()
