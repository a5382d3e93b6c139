from torch.distributed.distributed_c10d import all_reduce as all_reduce
